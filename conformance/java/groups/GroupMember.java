import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * The part of Kafka's Java client in tests/support/live_group.py: a member of a group. The arguments are: bootstrap
 * servers, group, the member's name, the protocol ("consumer", KIP-848, or "classic"), and a topic or, if it begins with
 * ^, a pattern that the broker applies. tests/support/group_history.py describes the printed lines. On SIGTERM, the
 * member leaves.
 */
final class GroupMember implements ConsumerRebalanceListener {
    private static final FileOutputStream OUT = new FileOutputStream(FileDescriptor.out);
    private static volatile boolean stopping;
    private final String name;
    private final Map<TopicPartition, OffsetAndMetadata> pending = new HashMap<>();

    private GroupMember(String name) {
        this.name = name;
    }

    public static void main(String[] arguments) {
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping = true;
            try {
                main.join();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }));
        new GroupMember(arguments[2]).run(arguments[0], arguments[1], arguments[3], arguments[4]);
    }

    private void run(String bootstrap, String group, String protocol, String subscription) {
        Map<String, Object> options = new HashMap<>(Map.of(
                "bootstrap.servers", bootstrap, "group.id", group, "group.protocol", protocol,
                "auto.offset.reset", "earliest", "enable.auto.commit", "false", "metadata.max.age.ms", "1000"));
        if (protocol.equals("classic")) {
            options.put("partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
            options.put("heartbeat.interval.ms", "200");
        }
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(options, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            if (subscription.startsWith("^")) {
                consumer.subscribe(new SubscriptionPattern(subscription), this);
            } else {
                consumer.subscribe(List.of(subscription), this);
            }
            while (!stopping) {
                var records = consumer.poll(Duration.ofMillis(100));
                for (TopicPartition partition : records.partitions()) {
                    List<ConsumerRecord<byte[], byte[]>> found = records.records(partition);
                    say("read", place(partition) + ", \"offsets\": "
                            + found.stream().map(ConsumerRecord::offset).toList());
                    pending.put(partition, new OffsetAndMetadata(found.get(found.size() - 1).offset() + 1));
                }
                commit(consumer);
            }
        }
        say("ended", "");
    }

    private void commit(KafkaConsumer<byte[], byte[]> consumer) {
        if (pending.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync(pending);
        } catch (KafkaException error) {
            say("refused", ", \"error\": \"" + error.toString().replaceAll("[\"\\\\\\s]+", " ") + "\"");
            return;
        }
        pending.forEach((partition, offset) -> say("committed", place(partition) + ", \"offset\": " + offset.offset()));
        pending.clear();
    }

    private static String place(TopicPartition partition) {
        return ", \"topic\": \"" + partition.topic() + "\", \"partition\": " + partition.partition();
    }

    /** Prints an event with a single write: several members share one file. */
    private void say(String what, String more) {
        String line = "{\"member\": \"" + name + "\", \"what\": \"" + what + "\"" + more + "}\n";
        try {
            OUT.write(line.getBytes(StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private void told(String what, Collection<TopicPartition> partitions) {
        if (!partitions.isEmpty()) {
            say(what, ", \"partitions\": [" + partitions.stream()
                    .map(each -> "[\"" + each.topic() + "\", " + each.partition() + "]")
                    .collect(Collectors.joining(", ")) + "]");
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        told("assigned", partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        partitions.forEach(pending::remove);
        told("revoked", partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        partitions.forEach(pending::remove);
        told("lost", partitions);
    }
}
