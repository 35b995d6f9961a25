import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;

/** The client of Java follows a control plane: a line "PASS CASE" or "FAIL CASE: REASON" for each case. */
public class Main {
    interface Case {
        void run() throws Exception;
    }

    static String url, tlsUrl, ca, token, changer;
    static PulsarClient client;
    static final HttpClient http = HttpClient.newHttpClient();

    public static void main(String[] args) throws Exception {
        url = args[0];
        tlsUrl = args[1];
        ca = args[2];
        token = args[3];
        changer = args[4];
        client = connect(url, token);
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("exclusive", Main::exclusive);
        cases.put("failover", Main::failover);
        cases.put("shared", Main::shared);
        cases.put("key_shared", Main::keyShared);
        cases.put("reader", Main::reader);
        cases.put("table view", Main::tableView);
        cases.put("compacted", Main::compacted);
        cases.put("seek by ID", Main::seekById);
        cases.put("seek by time", Main::seekByTime);
        cases.put("resume", Main::resume);
        cases.put("acknowledgement timeout", Main::ackTimeout);
        cases.put("negative acknowledgement", Main::negative);
        cases.put("dead letter", Main::deadLetter);
        cases.put("unsubscribe", Main::unsubscribe);
        cases.put("small queue", Main::smallQueue);
        cases.put("refusals", Main::refusals);
        cases.put("TLS", Main::tls);
        for (Map.Entry<String, Case> c : cases.entrySet()) {
            try {
                c.getValue().run();
                System.out.println("PASS " + c.getKey());
            } catch (Throwable e) {
                StackTraceElement at = null;
                for (StackTraceElement f : e.getStackTrace()) {
                    if (at == null && f.getClassName().equals("Main") && !f.getMethodName().equals("check")) {
                        at = f;
                    }
                }
                System.out.println("FAIL " + c.getKey() + ": " + String.valueOf(e).replace('\n', ' ') + " at " + at);
            }
        }
        client.close();
        System.exit(0);
    }

    static PulsarClient connect(String url, String token) throws Exception {
        return PulsarClient.builder().serviceUrl(url).authentication(AuthenticationFactory.token(token))
            .tlsTrustCertsFilePath(ca).operationTimeout(10, TimeUnit.SECONDS).build();
    }

    static String change(String what) throws Exception {
        HttpResponse<String> r = http.send(HttpRequest.newBuilder(URI.create(changer + what)).build(), HttpResponse.BodyHandlers.ofString());
        check(r.statusCode() == 200, what + ": " + r.body());
        return r.body();
    }

    static void check(boolean ok, String what) {
        if (!ok) {
            throw new IllegalStateException(what);
        }
    }

    static void same(Object got, Object want) {
        check(String.valueOf(got).equals(String.valueOf(want)), "got " + got + ", want " + want);
    }

    /** A namespace with Services, and the topic of their changes. */
    static class Topic {
        final String namespace, name;

        Topic(String... keys) throws Exception {
            namespace = change("/new");
            name = "persistent://default/" + namespace + "/services";
            put(keys);
        }

        void put(String... keys) throws Exception {
            for (String key : keys) {
                change("/put/" + namespace + "/" + key);
            }
        }

        void delete(String key) throws Exception {
            change("/delete/" + namespace + "/" + key);
        }

        ConsumerBuilder<byte[]> consumer(SubscriptionType type) {
            return client.newConsumer().topic(name).subscriptionName("java").subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).isAckReceiptEnabled(true);
        }
    }

    static List<Message<byte[]>> take(Consumer<byte[]> in, int n) throws Exception {
        List<Message<byte[]>> out = new ArrayList<>();
        while (out.size() < n) {
            Message<byte[]> m = in.receive(10, TimeUnit.SECONDS);
            if (m == null) {
                break;
            }
            out.add(m);
        }
        return out;
    }

    static String keys(List<Message<byte[]>> all) {
        List<String> out = new ArrayList<>();
        for (Message<byte[]> m : all) {
            out.add(m.getKey() + (m.getRedeliveryCount() > 0 ? "+" + m.getRedeliveryCount() : ""));
        }
        return String.join(" ", out);
    }

    static void nothing(Consumer<byte[]> in) throws Exception {
        Message<byte[]> m = in.receive(400, TimeUnit.MILLISECONDS);
        check(m == null, "a message too many: " + (m == null ? "" : m.getKey()));
    }

    static void exclusive() throws Exception {
        Topic t = new Topic("a", "b");
        try (Consumer<byte[]> x = t.consumer(SubscriptionType.Exclusive).subscribe()) {
            List<Message<byte[]>> all = take(x, 2);
            same(keys(all), "a b");
            check(new String(all.get(0).getData()).contains("\"name\":\"a\""), "payload");
            same(all.get(0).getProperty("operation"), "put");
            try {
                t.consumer(SubscriptionType.Exclusive).subscribe().close();
                check(false, "a second consumer is let in");
            } catch (PulsarClientException.ConsumerBusyException expected) {
            }
            t.delete("a");
            Message<byte[]> gone = take(x, 1).get(0);
            check(gone.getKey().equals("a") && gone.getData() == null && gone.getProperty("operation").equals("delete"), "a deletion");
        }
    }

    static class Roles implements ConsumerEventListener {
        volatile boolean active;

        public void becameActive(Consumer<?> consumer, int partition) {
            active = true;
        }

        public void becameInactive(Consumer<?> consumer, int partition) {
            active = false;
        }
    }

    static void failover() throws Exception {
        Topic t = new Topic("a", "b", "c");
        Roles first = new Roles(), second = new Roles();
        Consumer<byte[]> x = t.consumer(SubscriptionType.Failover).priorityLevel(0).consumerEventListener(first).subscribe();
        try (Consumer<byte[]> y = t.consumer(SubscriptionType.Failover).priorityLevel(1).consumerEventListener(second).subscribe()) {
            List<Message<byte[]>> got = take(x, 3);
            same(keys(got), "a b c");
            x.acknowledge(got.get(0));
            nothing(y);
            check(first.active && !second.active, "who is active");
            x.close();
            same(keys(take(y, 2)), "b c");
            check(second.active, "the second is not told");
        }
    }

    static void shared() throws Exception {
        Topic t = new Topic();
        try (Consumer<byte[]> x = t.consumer(SubscriptionType.Shared).receiverQueueSize(1).subscribe();
                Consumer<byte[]> y = t.consumer(SubscriptionType.Shared).receiverQueueSize(1).subscribe()) {
            t.put("a", "b", "c", "d");
            TreeSet<String> all = new TreeSet<>();
            int[] counts = new int[2];
            for (int i = 0; all.size() < 4 && i < 100; i++) {
                Message<byte[]> m = (i % 2 == 0 ? x : y).receive(100, TimeUnit.MILLISECONDS);
                if (m != null) {
                    check(all.add(m.getKey()), "twice: " + m.getKey());
                    counts[i % 2]++;
                    (i % 2 == 0 ? x : y).acknowledge(m);
                }
            }
            same(all, "[a, b, c, d]");
            check(counts[0] > 0 && counts[1] > 0, "one consumer has all");
            nothing(x);
            nothing(y);
        }
    }

    static void keyShared() throws Exception {
        Topic t = new Topic();
        try (Consumer<byte[]> x = t.consumer(SubscriptionType.Key_Shared).consumerName("x").subscribe();
                Consumer<byte[]> y = t.consumer(SubscriptionType.Key_Shared).consumerName("y").subscribe()) {
            for (int round = 0; round < 3; round++) {
                for (int k = 0; k < 8; k++) {
                    t.put("k" + k);
                }
            }
            Map<String, Integer> owner = new TreeMap<>();
            Map<String, Long> last = new TreeMap<>();
            int n = 0;
            for (int i = 0; n < 24 && i < 300; i++) {
                Message<byte[]> m = (i % 2 == 0 ? x : y).receive(100, TimeUnit.MILLISECONDS);
                if (m == null) {
                    continue;
                }
                (i % 2 == 0 ? x : y).acknowledge(m);
                n++;
                long at = Long.parseLong(m.getProperty("position"));
                check(owner.computeIfAbsent(m.getKey(), k -> -1) == -1 || owner.get(m.getKey()) == i % 2, "a key at two consumers");
                check(last.getOrDefault(m.getKey(), 0L) < at, "a key out of order");
                owner.put(m.getKey(), i % 2);
                last.put(m.getKey(), at);
            }
            same(n, 24);
        }
    }

    static String read(Reader<byte[]> r) throws Exception {
        List<String> out = new ArrayList<>();
        while (r.hasMessageAvailable()) {
            Message<byte[]> m = r.readNext(10, TimeUnit.SECONDS);
            check(m != null, "hasMessageAvailable, and there is none");
            out.add(m.getKey());
        }
        return String.join(" ", out);
    }

    static void reader() throws Exception {
        Topic t = new Topic("a", "b", "c");
        MessageId second;
        try (Reader<byte[]> r = client.newReader().topic(t.name).startMessageId(MessageId.earliest).create()) {
            check(r.hasMessageAvailable(), "there are messages");
            same(r.readNext().getKey(), "a");
            second = r.readNext().getMessageId();
            same(read(r), "c");
            t.put("d");
            same(read(r), "d");
            r.seek(second);
            same(read(r), "c d");
            r.seek(MessageId.earliest);
            same(read(r), "a b c d");
            r.seek(System.currentTimeMillis() - 3_600_000);
            same(read(r), "a b c d");
        }
        try (Reader<byte[]> r = client.newReader().topic(t.name).startMessageId(second).create()) {
            same(read(r), "c d");
        }
        try (Reader<byte[]> r = client.newReader().topic(t.name).startMessageId(second).startMessageIdInclusive().create()) {
            same(read(r), "b c d");
        }
        try (Reader<byte[]> r = client.newReader().topic(t.name).startMessageId(MessageId.latest).create()) {
            check(!r.hasMessageAvailable(), "nothing is after the latest");
            t.put("e");
            same(read(r), "e");
        }
        try (Reader<byte[]> r = client.newReader().topic(t.name).startMessageId(MessageId.latest).startMessageIdInclusive().create()) {
            same(read(r), "e");
        }
    }

    static void tableView() throws Exception {
        Topic t = new Topic("a", "b", "c", "a");
        t.delete("b");
        try (TableView<byte[]> view = client.newTableView(Schema.BYTES).topic(t.name).create()) {
            same(new TreeSet<>(view.keySet()), "[a, c]");
            CompletableFuture<String> heard = new CompletableFuture<>();
            view.listen((key, value) -> {
                if (key.equals("d")) {
                    heard.complete(new String(value));
                }
            });
            t.put("d");
            check(heard.get(10, TimeUnit.SECONDS).contains("\"name\":\"d\""), "the view does not follow");
        }
    }

    static void compacted() throws Exception {
        Topic t = new Topic("a", "b", "a", "c");
        t.delete("b");
        try (Reader<byte[]> r = client.newReader().topic(t.name).startMessageId(MessageId.earliest).readCompacted(true).create()) {
            same(read(r), "a c");
            t.put("b");
            same(read(r), "b");
        }
    }

    static void seekById() throws Exception {
        Topic t = new Topic("a", "b", "c");
        try (Consumer<byte[]> x = t.consumer(SubscriptionType.Exclusive).subscribe()) {
            List<Message<byte[]>> all = take(x, 3);
            x.acknowledgeCumulative(all.get(2));
            x.seek(all.get(0).getMessageId());
            same(keys(take(x, 2)), "b c");
            nothing(x);
            x.seek(MessageId.earliest);
            same(keys(take(x, 3)), "a b c");
            x.seek(MessageId.latest);
            nothing(x);
        }
        try (Consumer<byte[]> x = t.consumer(SubscriptionType.Exclusive).subscriptionName("inclusive").startMessageIdInclusive().subscribe()) {
            List<Message<byte[]>> all = take(x, 3);
            x.seek(all.get(1).getMessageId());
            same(keys(take(x, 2)), "b c");
        }
    }

    static void seekByTime() throws Exception {
        Topic t = new Topic("a", "b");
        try (Consumer<byte[]> x = t.consumer(SubscriptionType.Exclusive).subscribe()) {
            long after = take(x, 2).get(1).getPublishTime() + 1;
            while (System.currentTimeMillis() <= after) {
                Thread.sleep(1);
            }
            t.put("c");
            same(keys(take(x, 1)), "c");
            x.seek(after);
            same(keys(take(x, 1)), "c");
            nothing(x);
            x.seek(after - 3_600_000);
            same(keys(take(x, 3)), "a b c");
        }
    }

    static void resume() throws Exception {
        Topic t = new Topic("a", "b", "c", "d");
        try (PulsarClient other = connect(url, token);
                Consumer<byte[]> x = other.newConsumer().topic(t.name).subscriptionName("java").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .isAckReceiptEnabled(true).subscribe()) {
            List<Message<byte[]>> all = take(x, 4);
            x.acknowledge(all.get(0));
            x.acknowledge(all.get(2));
        }
        try (Consumer<byte[]> x = t.consumer(SubscriptionType.Exclusive).subscribe()) {
            List<Message<byte[]>> all = take(x, 2);
            same(keys(all), "b d");
            x.acknowledgeCumulative(all.get(0));
        }
        change("/restart");
        try (Consumer<byte[]> x = t.consumer(SubscriptionType.Exclusive).subscribe()) {
            same(keys(take(x, 1)), "d");
            nothing(x);
            t.put("e");
            same(keys(take(x, 1)), "e");
            same(x.getLastMessageIds().size(), 1);
        }
    }

    static void ackTimeout() throws Exception {
        Topic t = new Topic("a", "b");
        try (Consumer<byte[]> x = t.consumer(SubscriptionType.Shared).ackTimeout(1, TimeUnit.SECONDS).ackTimeoutTickTime(200, TimeUnit.MILLISECONDS).subscribe()) {
            List<Message<byte[]>> all = take(x, 2);
            x.acknowledge(all.get(1));
            List<Message<byte[]>> again = take(x, 1);
            same(keys(again), "a+1");
            x.acknowledge(again.get(0));
            Message<byte[]> more = x.receive(2, TimeUnit.SECONDS);
            check(more == null, "it comes after it was acknowledged");
        }
    }

    static void negative() throws Exception {
        Topic t = new Topic("a", "b");
        try (Consumer<byte[]> x = t.consumer(SubscriptionType.Shared).negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).subscribe()) {
            List<Message<byte[]>> all = take(x, 2);
            x.acknowledge(all.get(1));
            x.negativeAcknowledge(all.get(0));
            List<Message<byte[]>> again = take(x, 1);
            same(keys(again), "a+1");
            x.negativeAcknowledge(again.get(0));
            again = take(x, 1);
            same(keys(again), "a+2");
            x.acknowledge(again.get(0));
            nothing(x);
        }
    }

    /** There is no producer, so a message that fails too often is not acknowledged; an application sets it aside by its redelivery count. */
    static void deadLetter() throws Exception {
        Topic t = new Topic("a", "b");
        try (PulsarClient other = connect(url, token)) { // closing the consumer itself fails, as its producer has
            Consumer<byte[]> x = other.newConsumer().topic(t.name).subscriptionName("java").subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).isAckReceiptEnabled(true).negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(1).build()).subscribe();
            List<Message<byte[]>> all = take(x, 2);
            x.acknowledge(all.get(1));
            x.negativeAcknowledge(all.get(0));
            List<Message<byte[]>> again = take(x, 1);
            same(keys(again), "a+1");
            x.negativeAcknowledge(again.get(0));
            x.receive(2, TimeUnit.SECONDS); // it may come again, as it cannot be sent to the dead letter topic
        }
        try (Consumer<byte[]> x = t.consumer(SubscriptionType.Shared).negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).subscribe()) {
            List<Message<byte[]>> aside = new ArrayList<>();
            while (aside.isEmpty()) {
                Message<byte[]> m = x.receive(10, TimeUnit.SECONDS);
                check(m != null && m.getKey().equals("a"), "the message that has failed is lost");
                if (m.getRedeliveryCount() < 2) {
                    x.negativeAcknowledge(m);
                } else {
                    aside.add(m);
                    x.acknowledge(m);
                }
            }
            nothing(x);
        }
    }

    static void unsubscribe() throws Exception {
        Topic t = new Topic("a");
        Consumer<byte[]> x = t.consumer(SubscriptionType.Exclusive).subscribe();
        x.acknowledge(take(x, 1).get(0));
        x.unsubscribe();
        try (Consumer<byte[]> y = t.consumer(SubscriptionType.Exclusive).subscribe()) {
            same(keys(take(y, 1)), "a");
        }
    }

    static void smallQueue() throws Exception {
        Topic t = new Topic("a", "b", "c");
        try (Consumer<byte[]> x = t.consumer(SubscriptionType.Shared).receiverQueueSize(0).subscribe()) {
            same(keys(List.of(x.receive(), x.receive(), x.receive())), "a b c");
        }
        try (Consumer<byte[]> x = t.consumer(SubscriptionType.Exclusive).subscriptionName("paused").receiverQueueSize(1).subscribe()) {
            x.pause();
            take(x, 1); // what it had asked for before
            nothing(x);
            x.resume();
            check(take(x, 2).size() == 2, "it does not go on");
        }
    }

    static void refusals() throws Exception {
        Topic t = new Topic("a");
        try {
            client.newProducer().topic(t.name).create().close();
            check(false, "there is a producer");
        } catch (PulsarClientException.NotAllowedException expected) {
            check(expected.getMessage().contains("change objects by the API"), expected.getMessage());
        }
        try {
            client.newReader().topic(t.name + "-none").startMessageId(MessageId.earliest).create().close();
            check(false, "an unknown topic is there");
        } catch (PulsarClientException.TopicDoesNotExistException | PulsarClientException.NotFoundException expected) {
        }
        try (PulsarClient wrong = connect(url, "wrong")) {
            wrong.newReader().topic(t.name).startMessageId(MessageId.earliest).create().close();
            check(false, "a wrong token is taken");
        } catch (PulsarClientException.AuthenticationException expected) {
        }
    }

    static void tls() throws Exception {
        Topic t = new Topic("a");
        try (PulsarClient secure = connect(tlsUrl, token);
                Reader<byte[]> r = secure.newReader().topic(t.name).startMessageId(MessageId.earliest).create()) {
            same(read(r), "a");
        }
    }
}
