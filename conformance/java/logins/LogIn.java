import java.io.FileReader;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The part of Kafka's Java client in conformance/test_login_table.py. Each argument is a properties file of a client,
 * with the name of its topic. For each of them, it prints a line: the topic, and what was read or the error.
 */
final class LogIn {
    public static void main(String[] files) throws Exception {
        for (String file : files) {
            String topic = Path.of(file).getFileName().toString().replace(".properties", "");
            Properties options = new Properties();
            try (FileReader reader = new FileReader(file)) {
                options.load(reader);
            }
            try {
                System.out.println(topic + " read " + String.join(" ", copied(topic, options)));
            } catch (Exception error) {
                System.out.println(topic + " failed " + error.toString().replace('\n', ' '));
            }
        }
        System.exit(0);
    }

    /** Creates the topic, writes three values, and reads them as a member of a group. */
    static List<String> copied(String topic, Properties options) throws Exception {
        try (Admin admin = Admin.create(options)) {
            admin.createTopics(List.of(new NewTopic(topic, Optional.of(1), Optional.empty()))).all().get();
        }
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(options, new StringSerializer(), new StringSerializer())) {
            for (String value : List.of("one", "two", "three")) {
                producer.send(new ProducerRecord<>(topic, value)).get();
            }
        }
        options.put("group.id", topic);
        options.put("auto.offset.reset", "earliest");
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(options, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (found.size() < 3) {
                consumer.poll(Duration.ofSeconds(60)).forEach(each -> found.add(each.value()));
            }
        }
        return found;
    }
}
