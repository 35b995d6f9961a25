"""The client of Python follows a control plane: a line "PASS CASE" or "FAIL CASE: REASON" for each case."""

import sys
import time
import traceback
import urllib.request

import pulsar

url, tls_url, ca, token, changer = sys.argv[1:]
quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
Type = pulsar.ConsumerType


def connect(to=url, by=token):
    return pulsar.Client(
        to, authentication=pulsar.AuthenticationToken(by), operation_timeout_seconds=10, logger=quiet, tls_trust_certs_file_path=ca, tls_validate_hostname=to == tls_url
    )


client = connect()


def change(what):
    with urllib.request.urlopen(changer + what) as answer:
        return answer.read().decode()


def same(got, want):
    if got != want:
        raise AssertionError(f"got {got!r}, want {want!r}")


class Topic:
    """A namespace with Services, and the topic of their changes."""

    def __init__(self, *keys):
        self.namespace = change("/new")
        self.name = f"persistent://default/{self.namespace}/services"
        self.put(*keys)

    def put(self, *keys):
        for key in keys:
            change(f"/put/{self.namespace}/{key}")

    def delete(self, key):
        change(f"/delete/{self.namespace}/{key}")

    def consumer(self, kind=Type.Exclusive, name="python", by=None, **options):
        return (by or client).subscribe(
            self.name, name, consumer_type=kind, initial_position=pulsar.InitialPosition.Earliest, negative_ack_redelivery_delay_ms=100, **options
        )

    def reader(self, start=pulsar.MessageId.earliest, by=None, **options):
        return (by or client).create_reader(self.name, start, **options)


def take(source, n):
    out = []
    while len(out) < n:
        try:
            out.append(source.receive(10_000))
        except pulsar.Timeout:
            break
    return out


def keys(messages):
    return " ".join(m.partition_key() + (f"+{m.redelivery_count()}" if m.redelivery_count() else "") for m in messages)


def nothing(source, within=400):
    try:
        m = source.receive(within)
    except pulsar.Timeout:
        return
    raise AssertionError("a message too many: " + m.partition_key())


def refused(what, kind, call):
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{what} is not refused")


def read(r):
    out = []
    while r.has_message_available():
        out.append(r.read_next(10_000).partition_key())
    return " ".join(out)


def exclusive():
    t = Topic("a", "b")
    x = t.consumer()
    got = take(x, 2)
    same(keys(got), "a b")
    assert b'"name":"a"' in got[0].data()
    same(got[0].properties()["operation"], "put")
    refused("a second consumer", pulsar.ConsumerBusy, t.consumer)
    t.delete("a")
    (gone,) = take(x, 1)
    same((gone.partition_key(), gone.data(), gone.properties()["operation"]), ("a", b"", "delete"))
    x.close()


def failover():
    t = Topic("a", "b", "c")
    x, other = t.consumer(Type.Failover), connect()
    y = t.consumer(Type.Failover, by=other)
    got = take(x, 3)
    same(keys(got), "a b c")
    x.acknowledge(got[0])
    nothing(y)
    x.close()
    same(keys(take(y, 2)), "b c")
    other.close()


def divided(t, x, y, n, acknowledge=True):
    """n messages of two consumers: (index of the consumer, message)."""
    out = []
    for i in range(40 * n):
        if len(out) == n:
            break
        source = (x, y)[i % 2]
        try:
            m = source.receive(50)
        except pulsar.Timeout:
            continue
        if acknowledge:
            source.acknowledge(m)
        out.append((i % 2, m))
    nothing(x)
    nothing(y)
    return out


def shared():
    t = Topic()
    x, y = (t.consumer(Type.Shared, receiver_queue_size=1) for _ in range(2))
    t.put("a", "b", "c", "d")
    got = divided(t, x, y, 4)
    same(sorted(m.partition_key() for _, m in got), ["a", "b", "c", "d"])
    same({i for i, _ in got}, {0, 1})
    x.close()
    y.close()


def key_shared():
    t = Topic()
    x, y = (t.consumer(Type.KeyShared, consumer_name=name) for name in "xy")
    for _ in range(3):
        t.put(*(f"k{k}" for k in range(8)))
    got = divided(t, x, y, 24)
    same(len(got), 24)
    owner, last = {}, {}
    for i, m in got:
        key, at = m.partition_key(), int(m.properties()["position"])
        same(owner.setdefault(key, i), i)
        assert last.get(key, 0) < at, "a key out of order"
        last[key] = at
    x.close()
    y.close()


def reader():
    t = Topic("a", "b", "c")
    r = t.reader()
    assert r.has_message_available()
    same(r.read_next(10_000).partition_key(), "a")
    second = r.read_next(10_000).message_id()
    same(read(r), "c")
    t.put("d")
    same(read(r), "d")
    r.seek(second)
    same(read(r), "c d")
    r.seek(pulsar.MessageId.earliest)
    same(read(r), "a b c d")
    r.seek(int(time.time() * 1000) - 3_600_000)
    same(read(r), "a b c d")
    same(read(t.reader(second)), "c d")
    same(read(t.reader(second, start_message_id_inclusive=True)), "b c d")
    latest = t.reader(pulsar.MessageId.latest)
    assert not latest.has_message_available()
    t.put("e")
    same(read(latest), "e")


def table_view():
    t = Topic("a", "b", "c", "a")
    t.delete("b")
    view = client.create_table_view(t.name)
    seen = []
    view.for_each(lambda key, value: seen.append(key))
    same(sorted(seen), ["a", "c"])
    t.put("d")
    end = time.time() + 10
    while view.get("d") is None and time.time() < end:
        time.sleep(0.01)
    assert b'"name":"d"' in view.get("d")
    view.close()


def compacted():
    t = Topic("a", "b", "a", "c")
    t.delete("b")
    r = t.reader(is_read_compacted=True)
    same(read(r), "a c")
    t.put("b")
    same(read(r), "b")


def seek_by_id():
    t = Topic("a", "b", "c")
    x = t.consumer()
    got = take(x, 3)
    x.acknowledge_cumulative(got[2])
    x.seek(got[0].message_id())
    same(keys(take(x, 2)), "b c")
    nothing(x)
    x.seek(pulsar.MessageId.earliest)
    same(keys(take(x, 3)), "a b c")
    x.seek(pulsar.MessageId.latest)
    nothing(x)
    x.close()
    y = t.consumer(name="inclusive", start_message_id_inclusive=True)
    y.seek(take(y, 3)[1].message_id())
    same(keys(take(y, 2)), "b c")
    y.close()


def seek_by_time():
    t = Topic("a", "b")
    x = t.consumer()
    after = take(x, 2)[1].publish_timestamp() + 1
    while time.time() * 1000 <= after:
        time.sleep(0.001)
    t.put("c")
    same(keys(take(x, 1)), "c")
    x.seek(after)
    same(keys(take(x, 1)), "c")
    nothing(x)
    x.seek(after - 3_600_000)
    same(keys(take(x, 3)), "a b c")
    x.close()


def resume():
    t = Topic("a", "b", "c", "d")
    other = connect()
    x = t.consumer(by=other)
    got = take(x, 4)
    x.acknowledge(got[0])
    x.acknowledge(got[2])
    x.close()
    other.close()
    x = t.consumer()
    got = take(x, 2)
    same(keys(got), "b d")
    x.acknowledge_cumulative(got[0])
    x.close()
    change("/restart")
    x = t.consumer()
    same(keys(take(x, 1)), "d")
    nothing(x)
    t.put("e")
    same(keys(take(x, 1)), "e")
    x.close()


def acknowledgement_timeout():
    t = Topic("a", "b")
    x = t.consumer(Type.Shared, unacked_messages_timeout_ms=10_000)  # the least that the client takes
    got = take(x, 2)
    x.acknowledge(got[1])
    end, again = time.time() + 30, []
    while not again and time.time() < end:
        again = take(x, 1)
    same(keys(again), "a+1")
    x.acknowledge(again[0])
    x.close()


def negative_acknowledgement():
    t = Topic("a", "b")
    x = t.consumer(Type.Shared)
    got = take(x, 2)
    x.acknowledge(got[1])
    for want in ("a+1", "a+2"):
        x.negative_acknowledge(got[0])
        got = take(x, 1)
        same(keys(got), want)
    x.acknowledge(got[0])
    nothing(x)
    x.close()


def dead_letter():
    # There is no producer, so a message that fails too often is not acknowledged; an application sets it aside by its redelivery count.
    t = Topic("a", "b")
    other = connect()
    x = t.consumer(Type.Shared, by=other, dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=1))
    got = take(x, 2)
    x.acknowledge(got[1])
    x.negative_acknowledge(got[0])
    got = take(x, 1)
    same(keys(got), "a+1")
    x.negative_acknowledge(got[0])
    try:
        x.receive(2_000)  # it may come again, as it cannot be sent to the dead letter topic
    except pulsar.Timeout:
        pass
    other.close()
    x = t.consumer(Type.Shared)
    while True:
        (m,) = take(x, 1)
        same(m.partition_key(), "a")
        if m.redelivery_count() >= 2:
            break
        x.negative_acknowledge(m)
    x.acknowledge(m)
    nothing(x)
    x.close()


def unsubscribe():
    t = Topic("a")
    x = t.consumer()
    x.acknowledge(take(x, 1)[0])
    x.unsubscribe()
    x = t.consumer()
    same(keys(take(x, 1)), "a")
    x.close()


def small_queue():
    t = Topic("a", "b", "c")
    x = t.consumer(Type.Shared, receiver_queue_size=1)
    same(keys(take(x, 3)), "a b c")
    x.close()
    x = t.consumer(name="paused", receiver_queue_size=1)
    same(keys(take(x, 3)), "a b c")
    x.close()


def refusals():
    t = Topic("a")
    refused("a producer", pulsar.PulsarException, lambda: client.create_producer(t.name))
    refused("an unknown topic", pulsar.PulsarException, lambda: client.create_reader(t.name + "-none", pulsar.MessageId.earliest))
    wrong = connect(by="wrong")
    refused("a wrong token", pulsar.PulsarException, lambda: t.reader(by=wrong))
    wrong.close()


def tls():
    t = Topic("a")
    secure = connect(tls_url)
    same(read(t.reader(by=secure)), "a")
    secure.close()


for case in (
    exclusive, failover, shared, key_shared, reader, table_view, compacted, seek_by_id, seek_by_time, resume, acknowledgement_timeout,
    negative_acknowledgement, dead_letter, unsubscribe, small_queue, refusals, tls,
):  # fmt: skip
    name = case.__name__.replace("_", " ")
    try:
        case()
        print("PASS", name, flush=True)
    except Exception as e:
        line = traceback.extract_tb(e.__traceback__)
        at = [f.lineno for f in line if f.name == case.__name__]
        print(f"FAIL {name}: {e!r} at {at}", flush=True)
client.close()
