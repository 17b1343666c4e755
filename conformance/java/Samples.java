import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.config.ConfigException;

/**
 * Runs the articles' programs one after the other in one process.
 *
 * Prints the name of each run, then its events, indented. The caller has created the topics: PREFIX-in and
 * PREFIX-in-fenced with four records, PREFIX-cold with two, PREFIX-five with five partitions, and one for the output of
 * each run.
 */
public final class Samples {
    private static final Runnable NOTHING = () -> {};

    private static String bootstrap;
    private static String prefix;

    /** Arguments: the brokers, and the prefix of the names. */
    public static void main(String[] arguments) {
        bootstrap = arguments[0];
        prefix = arguments[1];
        run("idempotent", () -> {
            IdempotentSend.send(bootstrap, topic("idempotent")).close();
            IdempotentSend.send(bootstrap, topic("idempotent")).close();
        });
        run("lines", Samples::sendLines);
        for (String setting : Arrays.asList("max.in.flight.requests.per.connection=6", "acks=1", "retries=0")) {
            run(setting, () -> reject(setting));
        }
        run("sends", () -> sends("sends", "two", NOTHING));
        run("too-large", () -> sends("too-large", String.join("", Collections.nCopies(2_000_000, "x")), NOTHING));
        run("fenced", () -> sends("fenced", "two", () -> startSuccessor("fenced")));
        run("read", () -> read("read", warm("in"), NOTHING));
        run("read-fenced", () -> read("read-fenced", warm("in-fenced"), () -> startSuccessor("read-fenced")));
        run("read-cold", () -> read("read-cold", consumer("cold"), NOTHING));
    }

    private static void run(String name, Runnable program) {
        System.out.println(name);
        try {
            program.run();
        } catch (RuntimeException error) {
            System.out.println("  thrown " + error.getClass().getSimpleName());
        }
    }

    private static String topic(String name) {
        return prefix + "-" + name;
    }

    /** An article pipes 60 lines into Kafka's console producer, which sends each as a record without a key. */
    private static void sendLines() {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(IdempotentSend.settings(bootstrap))) {
            for (int i = 1; i <= 60; i++) {
                producer.send(new ProducerRecord<>(topic("five"), "hello lagou " + i));
            }
        }
    }

    private static void reject(String setting) {
        Properties props = IdempotentSend.settings(bootstrap);
        props.put(setting.split("=")[0], setting.split("=")[1]);
        try {
            new KafkaProducer<String, String>(props).close();
            System.out.println("  accepted");
        } catch (KafkaException error) {
            Throwable reason = error instanceof ConfigException ? error : error.getCause();
            System.out.println("  rejected " + reason.getClass().getSimpleName());
        }
    }

    /** Records wait for the commit, so that it does not depend on the time which request fails first. */
    private static KafkaProducer<String, String> producer(String id) {
        Properties props = IdempotentSend.settings(bootstrap);
        props.put("transactional.id", topic(id));
        props.put("linger.ms", "10000");
        return new KafkaProducer<>(props);
    }

    private static void sends(String name, String second, Runnable meanwhile) {
        String to = topic(name);
        try (KafkaProducer<String, String> producer = producer(name)) {
            TransactionalSend.run(
                    producer, new ProducerRecord<>(to, 0, null, "one"), new ProducerRecord<>(to, 1, null, second),
                    meanwhile);
        }
    }

    private static void startSuccessor(String id) {
        try (KafkaProducer<String, String> successor = producer(id)) {
            successor.initTransactions();
        }
    }

    private static KafkaConsumer<String, String> consumer(String from) {
        Properties props = new Properties();
        props.put("bootstrap.servers", bootstrap);
        props.put("group.id", "group1");
        props.put("enable.auto.commit", "false");
        props.put("auto.offset.reset", "earliest");
        props.put("isolation.level", "read_committed");
        props.put("max.poll.records", "2");
        props.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        props.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(props);
        consumer.subscribe(Collections.singleton(topic(from)));
        return consumer;
    }

    /** Return a consumer that has read two records, and has the next two in its buffer. */
    private static KafkaConsumer<String, String> warm(String from) {
        KafkaConsumer<String, String> consumer = consumer(from);
        while (consumer.poll(Duration.ofMillis(100)).isEmpty()) {
            Thread.yield();
        }
        return consumer;
    }

    private static void read(String name, KafkaConsumer<String, String> consumer, Runnable meanwhile) {
        ReadProcessWrite.run(producer(name), consumer, topic(name), meanwhile);
    }
}
