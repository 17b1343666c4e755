package org.apache.kafka.common.test.junit;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import kafka.server.ControllerServer;
import kafka.server.KafkaBroker;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.GroupProtocol;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.test.ClusterInstance;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.apache.kafka.common.test.api.Type;
import org.apache.kafka.server.authorizer.Authorizer;
import org.apache.kafka.server.fault.FaultHandlerException;
import org.apache.kafka.test.TestUtils;
import org.opentest4j.TestAbortedException;

/** What Kafka's tests ask of a cluster, answered by brokers of oncelog. Aborts tests that need Kafka's own objects. */
class OncelogInstance implements ClusterInstance {
    private final ClusterConfig config;
    private OncelogBrokers brokers;

    OncelogInstance(ClusterConfig config) {
        this.config = config;
    }

    @Override
    public void start() {
        if (brokers == null) {
            try {
                brokers = OncelogBrokers.get(config.numBrokers(), config.serverProperties(), config.features());
            } catch (IOException error) {
                throw new TestAbortedException("oncelog does not start with these settings", error);
            }
        }
    }

    @Override
    public boolean started() {
        return brokers != null;
    }

    @Override
    public void stop() {
        brokers.stop();
    }

    void release() {
        if (brokers != null) {
            brokers.release();
        }
    }

    @Override
    public boolean stopped() {
        return brokers != null && !brokers.alive();
    }

    @Override
    public void shutdownBroker(int id) {
        try {
            brokers.stop(id);
        } catch (IOException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public void startBroker(int id) {
        try {
            brokers.restart();
        } catch (IOException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
        String[] address = brokers.addresses.get(id - 1).split(":");
        until("broker " + id + " accepts connections", () -> {
            try (Socket socket = new Socket()) {
                socket.connect(new InetSocketAddress(address[0], Integer.parseInt(address[1])), 1_000);
                return true;
            } catch (IOException error) {
                return false;
            }
        });
    }

    @Override
    public ClusterConfig config() {
        return config;
    }

    @Override
    public Type type() {
        return Type.KRAFT;
    }

    @Override
    public String bootstrapServers() {
        return String.join(",", brokers.addresses);
    }

    @Override
    public List<Integer> brokerBoundPorts() {
        return brokers.addresses.stream().map(address -> Integer.valueOf(address.split(":")[1])).toList();
    }

    @Override
    public Set<Integer> brokerIds() {
        return IntStream.rangeClosed(1, config.numBrokers()).boxed().collect(Collectors.toSet());
    }

    @Override
    public ListenerName clientListener() {
        return config.brokerListenerName();
    }

    @Override
    public String clusterId() {
        try (Admin admin = admin()) {
            return admin.describeCluster().clusterId().get();
        } catch (InterruptedException | ExecutionException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public Set<GroupProtocol> supportedGroupProtocols() {
        return Set.of(GroupProtocol.CLASSIC, GroupProtocol.CONSUMER);
    }

    @Override
    public void waitForReadyBrokers() {
        until("all brokers are in the cluster", () -> {
            try (Admin admin = admin()) {
                return admin.describeCluster().nodes().get().size() == config.numBrokers();
            }
        });
    }

    @Override
    public void waitTopicCreation(String topic, int partitions) {
        onEachBroker(topic + " has " + partitions + " partitions", admin -> {
            TopicDescription found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            return found.partitions().size() == partitions
                && found.partitions().stream().allMatch(partition -> partition.leader() != null);
        });
    }

    @Override
    public void waitTopicDeletion(String topic) {
        onEachBroker(topic + " is deleted", admin -> !admin.listTopics().names().get().contains(topic));
    }

    @Override
    public void waitAcls(AclBindingFilter filter, Collection<AccessControlEntry> entries) {
        onEachBroker("the ACLs are " + entries, admin -> admin.describeAcls(filter).values().get().stream()
            .map(AclBinding::entry).collect(Collectors.toSet()).equals(Set.copyOf(entries)));
    }

    @Override
    public void ensureConsistentMetadata() {
        waitForReadyBrokers();
    }

    private interface Condition {
        boolean holds(Admin admin) throws Exception;
    }

    private void onEachBroker(String what, Condition condition) {
        for (String address : brokers.addresses) {
            try (Admin admin = admin(Map.of("bootstrap.servers", address))) {
                until(what + " on " + address, () -> condition.holds(admin));
            }
        }
    }

    private static void until(String what, Callable<Boolean> condition) {
        try {
            TestUtils.waitForCondition(() -> {
                try {
                    return condition.call();
                } catch (ExecutionException error) {
                    if (error.getCause() instanceof UnknownTopicOrPartitionException) {
                        return false;
                    }
                    throw new IllegalStateException(error);
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            }, 60_000, what);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private static TestAbortedException jvm() {
        return new TestAbortedException("the test looks into the JVM of Kafka's broker or controller");
    }

    @Override
    public Map<Integer, KafkaBroker> brokers() {
        throw jvm();
    }

    @Override
    public Map<Integer, KafkaBroker> aliveBrokers() {
        if (brokers.stopped.size() == config.numBrokers()) {
            return Map.of();
        }
        throw jvm();
    }

    @Override
    public Map<Integer, ControllerServer> controllers() {
        throw jvm();
    }

    @Override
    public Set<Integer> controllerIds() {
        throw jvm();
    }

    @Override
    public ListenerName controllerListenerName() {
        throw jvm();
    }

    @Override
    public String bootstrapControllers() {
        throw jvm();
    }

    @Override
    public List<Authorizer> authorizers() {
        throw jvm();
    }

    @Override
    public Optional<FaultHandlerException> firstFatalException() {
        return Optional.empty();
    }

    @Override
    public Optional<FaultHandlerException> firstNonFatalException() {
        return Optional.empty();
    }
}
