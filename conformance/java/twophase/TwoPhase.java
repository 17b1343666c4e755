import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.internals.Sender;
import org.apache.kafka.clients.producer.internals.TransactionManager;
import org.apache.kafka.clients.producer.internals.TransactionalRequestResult;
import org.apache.kafka.common.requests.AbstractRequest;
import org.apache.kafka.common.requests.InitProducerIdRequest;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Two-phase commit with Kafka's Java client (KIP-939). Version 4.3.1 has its messages and its states, but neither sets
 * the new fields of InitProducerId nor offers public methods. This program does both by reflection.
 *
 * <p>prepare SERVERS ID TOPIC VALUE... writes a transaction, prints its producer id and epoch, and dies without an end.
 * complete SERVERS ID STATE keeps the transaction of ID, commits it if STATE is its producer, and aborts it otherwise.
 */
final class TwoPhase {
    private static final int KILLED = 137;
    private static final short VERSION = 6;

    private final KafkaProducer<byte[], byte[]> producer;
    private final TransactionManager manager;

    private TwoPhase(String servers, String id) throws ReflectiveOperationException {
        producer = new KafkaProducer<>(
                Map.of("bootstrap.servers", servers, "transactional.id", id,
                        "transaction.two.phase.commit.enable", "true"),
                new ByteArraySerializer(), new ByteArraySerializer());
        manager = (TransactionManager) value(producer, "transactionManager");
    }

    private static Field field(Class<?> owner, String name) throws ReflectiveOperationException {
        Field found = owner.getDeclaredField(name);
        found.setAccessible(true);
        return found;
    }

    private static Object value(Object owner, String name) throws ReflectiveOperationException {
        return field(owner.getClass(), name).get(owner);
    }

    private void initialize(boolean keep) throws ReflectiveOperationException {
        TransactionalRequestResult result;
        synchronized (manager) { // so that the sender does not take the request before it is complete
            result = manager.initializeTransactions(keep);
            for (Object handler : (Collection<?>) value(manager, "pendingRequests")) {
                var builder = (InitProducerIdRequest.Builder) value(handler, "builder");
                builder.data.setEnable2Pc(true).setKeepPreparedTxn(keep);
                field(AbstractRequest.Builder.class, "latestAllowedVersion").setShort(builder, VERSION);
            }
        }
        ((Sender) value(producer, "sender")).wakeup();
        result.await(60, TimeUnit.SECONDS, "InitProducerId");
    }

    private String state() {
        var found = manager.preparedTransactionState();
        return found.producerId + ":" + found.epoch;
    }

    public static void main(String[] arguments) throws ReflectiveOperationException {
        TwoPhase program = new TwoPhase(arguments[1], arguments[2]);
        if (arguments[0].equals("prepare")) {
            program.initialize(false);
            program.producer.beginTransaction();
            for (int index = 4; index < arguments.length; index++) {
                byte[] value = arguments[index].getBytes(StandardCharsets.UTF_8);
                program.producer.send(new ProducerRecord<>(arguments[3], value));
            }
            program.producer.flush();
            program.manager.prepareTransaction();
            System.out.println(program.state());
            System.out.flush();
            Runtime.getRuntime().halt(KILLED);
        }
        program.initialize(true);
        // Otherwise, this version sends no EndTxn, because it has added no partition.
        field(TransactionManager.class, "transactionStarted").setBoolean(program.manager, true);
        boolean commit = program.state().equals(arguments[3]);
        if (commit) {
            program.producer.commitTransaction();
        } else {
            program.producer.abortTransaction();
        }
        System.out.println(commit ? "committed" : "aborted");
        // The producer works on with the epoch of the response.
        program.producer.beginTransaction();
        program.producer.send(new ProducerRecord<>(arguments[4], "next".getBytes(StandardCharsets.UTF_8)));
        program.producer.commitTransaction();
        program.producer.close();
    }
}
