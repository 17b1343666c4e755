import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;

/**
 * Makes the calls of the second program in an article on exactly-once semantics: in one transaction, read, write, and
 * commit the offsets.
 *
 * The article does not say where the offsets come from. Here, they are those after the records that were read.
 */
final class ReadProcessWrite {
    /** `meanwhile` runs after the poll. Each printed line is an event. */
    static void run(
            Producer<String, String> producer, Consumer<String, String> consumer, String topic, Runnable meanwhile) {
        producer.initTransactions();
        producer.beginTransaction();
        ConsumerRecords<String, String> records = consumer.poll(100);
        System.out.println("  polled " + records.count());
        meanwhile.run();
        try {
            producer.send(new ProducerRecord<String, String>(topic, "Key", "Value"));
            producer.sendOffsetsToTransaction(after(records), "group1");
            producer.commitTransaction();
            System.out.println("  committed");
        } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException error) {
            System.out.println("  caught " + error.getClass().getSimpleName());
            producer.abortTransaction();
            System.out.println("  aborted");
        } finally {
            producer.close();
            consumer.close();
        }
    }

    private static Map<TopicPartition, OffsetAndMetadata> after(ConsumerRecords<String, String> records) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
            TopicPartition partition = new TopicPartition(record.topic(), record.partition());
            offsets.put(partition, new OffsetAndMetadata(record.offset() + 1));
        }
        return offsets;
    }
}
