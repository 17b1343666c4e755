import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Makes the calls of two articles on the idempotent producer: it sends one record without a key.
 *
 * The articles neither flush nor close the producer. Without the third argument, this program does not either.
 */
public final class IdempotentSend {
    /** Arguments: the brokers, the topic, and `close` to close the producer. */
    public static void main(String[] arguments) {
        KafkaProducer producer = send(arguments[0], arguments[1]);
        if (arguments.length > 2) {
            producer.close();
        }
    }

    /** Return the producer, which may still have the record in its buffer. */
    static KafkaProducer send(String bootstrap, String topic) {
        KafkaProducer producer = new KafkaProducer(settings(bootstrap));
        producer.send(new ProducerRecord(topic, "test"));
        return producer;
    }

    static Properties settings(String bootstrap) {
        Properties props = new Properties();
        props.put(ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG, "true");
        props.put("acks", "all");
        props.put("bootstrap.servers", bootstrap);
        props.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        props.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        return props;
    }
}
