package org.apache.kafka.common.test.junit;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.server.common.Feature;
import org.apache.kafka.test.TestUtils;

/** `oncelog up` with its data in a folder of its own. Tests with the same settings use it one after another. */
class OncelogBrokers {
    private static OncelogBrokers idle;

    static {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> takeIdle(List.of())));
    }

    final List<String> addresses;
    final Set<Integer> stopped = new HashSet<>();
    private final List<String> arguments;
    private final Path folder = Files.createTempDirectory("oncelog-test");
    private final Process supervisor;
    private boolean harmed;

    /** Returns brokers without topics and groups: those of the last test, if they have these settings. */
    static OncelogBrokers get(int number, Map<String, String> settings, Map<Feature, Short> levels) throws IOException {
        List<String> arguments = new ArrayList<>(List.of("--brokers", String.valueOf(number)));
        new TreeMap<>(settings).forEach((key, value) -> arguments.addAll(List.of("--set", key + "=" + value)));
        OncelogBrokers found = takeIdle(arguments);
        if (found == null) {
            found = new OncelogBrokers(arguments);
        }
        if (!levels.isEmpty()) {
            found.setLevels(levels);
        }
        return found;
    }

    /** Returns the idle brokers if they have these arguments. Otherwise, stops them and returns null. */
    private static synchronized OncelogBrokers takeIdle(List<String> arguments) {
        OncelogBrokers found = idle;
        idle = null;
        if (found != null && !found.arguments.equals(arguments)) {
            found.stop();
            return null;
        }
        return found;
    }

    private OncelogBrokers(List<String> arguments) throws IOException {
        this.arguments = arguments;
        List<String> command = new ArrayList<>(List.of(System.getProperty("oncelog"), "up", "--port", "0"));
        command.addAll(List.of("--data", folder.resolve("data").toString()));
        command.addAll(arguments);
        supervisor = new ProcessBuilder(command).redirectError(folder.resolve("log").toFile()).start();
        addresses = addresses(supervisor.inputReader());
    }

    private List<String> addresses(BufferedReader output) throws IOException {
        for (String line = output.readLine(); line != null; line = output.readLine()) {
            if (line.startsWith("BROKERS=")) {
                return Arrays.asList(line.substring("BROKERS=".length()).split(","));
            }
        }
        throw new IOException("oncelog up failed: " + Files.readString(folder.resolve("log")));
    }

    private void setLevels(Map<Feature, Short> levels) throws IOException {
        harmed = true;
        Map<String, FeatureUpdate> updates = new HashMap<>();
        levels.forEach((feature, level) ->
            updates.put(feature.featureName(), new FeatureUpdate(level, FeatureUpdate.UpgradeType.SAFE_DOWNGRADE)));
        try (Admin admin = admin()) {
            admin.updateFeatures(updates, new UpdateFeaturesOptions()).all().get();
        } catch (ExecutionException error) {
            stop();
            throw new IOException(error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private Admin admin() {
        return Admin.create(Map.of("bootstrap.servers", String.join(",", addresses)));
    }

    boolean alive() {
        return supervisor.isAlive();
    }

    /** Stops a broker. Pauses its supervisor first, which would start it again. */
    void stop(int broker) throws IOException, InterruptedException {
        signal("STOP");
        String pid = Files.readString(folder.resolve("data/broker-" + broker + "/broker.pid")).strip();
        Path stat = Path.of("/proc", pid, "stat");
        ProcessHandle.of(Long.parseLong(pid)).orElseThrow().destroy();
        TestUtils.waitForCondition(() -> Files.readString(stat).contains(") Z "), 30_000, broker + " is a zombie");
        stopped.add(broker);
        harmed = true;
    }

    /** Lets the supervisor start the brokers that have stopped. */
    void restart() throws IOException, InterruptedException {
        stopped.clear();
        signal("CONT");
    }

    private void signal(String name) throws IOException, InterruptedException {
        new ProcessBuilder("kill", "-" + name, String.valueOf(supervisor.pid())).start().waitFor();
    }

    void stop() {
        try {
            restart();
            supervisor.destroy();
            if (!supervisor.waitFor(30, TimeUnit.SECONDS)) {
                supervisor.descendants().forEach(ProcessHandle::destroyForcibly);
                supervisor.destroyForcibly().waitFor();
            }
            Utils.delete(folder.toFile());
        } catch (IOException error) {
            throw new IllegalStateException(error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    /** Deletes what the test has left, and keeps the brokers for the next one. Otherwise, stops them. */
    void release() {
        if (alive()) {
            if (!harmed && cleaned()) {
                synchronized (OncelogBrokers.class) {
                    idle = this;
                }
            } else {
                stop();
            }
        }
    }

    private boolean cleaned() {
        Set<ConfigResource.Type> altered = Set.of(ConfigResource.Type.GROUP, ConfigResource.Type.CLIENT_METRICS);
        try (Admin admin = admin()) {
            Collection<GroupListing> groups = admin.listGroups().all().get();
            admin.deleteConsumerGroups(groups.stream().map(GroupListing::groupId).toList()).all().get();
            admin.deleteTopics(admin.listTopics().names().get()).all().get();
            return admin.listConfigResources(altered, new ListConfigResourcesOptions()).all().get().isEmpty();
        } catch (ExecutionException error) {
            return false; // such as a group that still has members
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            return false;
        }
    }
}
