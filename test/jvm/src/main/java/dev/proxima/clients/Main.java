package dev.proxima.clients;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collection;
import java.util.stream.Collectors;

/**
 * An unmodified client of a registry, driven by lines: {@code java Main PROTOCOL ADDRESS [NAME]}. Each line of
 * standard input is a command and its words; the answer is a line "ok [RESULT]" or "error TEXT". Lines "event TEXT"
 * come in between, when something that is watched has changed. It ends with its standard input.
 */
public final class Main {
    /** A client of one registry. */
    interface Client extends AutoCloseable {
        String run(String command, String... words) throws Exception;
    }

    // Libraries print to standard output, too: it is ours alone.
    private static final PrintStream OUT = System.out;

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        try (Client client = switch (args[0]) {
            case "nacos" -> new NacosClient(args[1]);
            case "curator" -> new CuratorClient(args[1]);
            case "eureka" -> new EurekaClient(args[1], args[2]);
            default -> throw new IllegalArgumentException(args[0]);
        }) {
            print("ok started");
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line; (line = in.readLine()) != null;) {
                String[] words = line.split(" ");
                try {
                    print("ok " + client.run(words[0], Arrays.copyOfRange(words, 1, words.length)));
                } catch (Exception e) {
                    print("error " + String.valueOf(e).replace('\n', ' '));
                }
            }
        }
        System.exit(0); // some leave threads behind
    }

    /** Tells of a change. */
    static void event(String text) {
        print("event " + text);
    }

    /** Joins addresses in order. */
    static String join(Collection<String> addresses) {
        return addresses.stream().sorted().collect(Collectors.joining(","));
    }

    private static void print(String line) {
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }
}
