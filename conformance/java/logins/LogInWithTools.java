import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileReader;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.utils.Exit;

/**
 * The part of Kafka's tools in conformance/test_login_table.py, in one JVM. Each argument is a properties file of a
 * client, with the name of its topic. For each of them, it prints a line: the topic, and what was read or the error.
 */
final class LogInWithTools {
    private static final PrintStream OUT = System.out;
    private static final PrintStream ERR = System.err;
    private static final List<Runnable> HOOKS = new ArrayList<>();
    private static int status;

    /** Ends a tool instead of the JVM. */
    static final class Ended extends RuntimeException {}

    /** Each tool calls this in the end, and once more if it catches our exception. The first status is its own. */
    private static void end(int code, String message) {
        status = status < 0 ? code : status;
        throw new Ended();
    }

    public static void main(String[] files) throws Exception {
        Exit.setExitProcedure(LogInWithTools::end);
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        for (String file : files) {
            String topic = Path.of(file).getFileName().toString().replace(".properties", "");
            OUT.println(topic + " " + copied(topic, file).strip().replaceAll("\\s+", " "));
        }
        System.exit(0);
    }

    private static String copied(String topic, String file) throws Exception {
        String created = run("TopicCommand", topic, file, "", "--create");
        if (status != 0) {
            return "failed " + created;
        }
        String written = run("ConsoleProducer", topic, file, "one\ntwo\nthree\n", "--sync", "--timeout", "0");
        if (status != 0) {
            return "failed " + written;
        }
        return "read " + run("consumer.ConsoleConsumer", topic, file, "", "--from-beginning", "--max-messages", "3",
                "--timeout-ms", "60000", "--group", topic);
    }

    /** Runs one of the tools, and returns its output. If it failed, returns its errors, too. */
    private static String run(String tool, String topic, String file, String input, String... more) throws Exception {
        Properties options = new Properties();
        try (FileReader reader = new FileReader(file)) {
            options.load(reader);
        }
        List<String> arguments = new ArrayList<>(List.of("--bootstrap-server", options.getProperty("bootstrap.servers"),
                "--command-config", file, "--topic", topic));
        arguments.addAll(List.of(more));
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        System.setIn(new ByteArrayInputStream(input.getBytes()));
        System.setOut(new PrintStream(said));
        System.setErr(new PrintStream(errors));
        status = -1;
        try {
            Class<?> found = Class.forName("org.apache.kafka.tools." + tool);
            found.getMethod("main", String[].class).invoke(null, (Object) arguments.toArray(new String[0]));
            status = Math.max(status, 0);
        } catch (java.lang.reflect.InvocationTargetException error) {
            if (!(error.getCause() instanceof Ended)) {
                throw error;
            }
        } finally {
            System.out.flush();
            System.setOut(OUT);
            System.setErr(ERR);
            HOOKS.forEach(Runnable::run);
            HOOKS.clear();
        }
        return status == 0 ? said.toString() : said + " " + errors;
    }
}
