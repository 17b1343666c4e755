import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.ProducerFencedException;

/** Makes the calls of the first program in an article on exactly-once semantics: two records in one transaction. */
final class TransactionalSend {
    /** `meanwhile` runs before the records are sent. Each printed line is an event. */
    static void run(
            Producer<String, String> producer,
            ProducerRecord<String, String> record1,
            ProducerRecord<String, String> record2,
            Runnable meanwhile) {
        producer.initTransactions();
        try {
            producer.beginTransaction();
            meanwhile.run();
            producer.send(record1);
            producer.send(record2);
            producer.commitTransaction();
            System.out.println("  committed");
        } catch (ProducerFencedException error) {
            System.out.println("  caught " + error.getClass().getSimpleName());
            producer.close();
        } catch (KafkaException error) {
            System.out.println("  caught " + error.getClass().getSimpleName());
            producer.abortTransaction();
            System.out.println("  aborted");
        }
    }
}
