import com.google.re2j.Pattern;
import com.google.re2j.PatternSyntaxException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * Match whole texts with RE2/J, as Kafka's group coordinator does. A line of the input has a pattern and texts, separated
 * by spaces: the hexadecimal digits of UTF-8 after a letter x. The output has a line for each: 1 or 0 for each text, or
 * "refused " and the description of the error.
 */
public final class WholeMatches {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream output = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            output.println(answer(line.split(" ")));
        }
        output.flush();
    }

    private static String answer(String[] words) {
        StringBuilder answer = new StringBuilder();
        try {
            Pattern pattern = Pattern.compile(text(words[0]));
            for (int i = 1; i < words.length; i++) {
                answer.append(pattern.matcher(text(words[i])).matches() ? '1' : '0');
            }
        } catch (PatternSyntaxException error) {
            return "refused " + error.getDescription();
        } catch (RuntimeException | StackOverflowError error) {
            return "failed " + error;
        }
        return answer.toString();
    }

    private static String text(String word) {
        byte[] bytes = new byte[word.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(word.substring(2 * i + 1, 2 * i + 3), 16);
        }
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
