#!/usr/bin/env python3
"""A client of Ringfence in Python, written from the protocol's page alone.

It is what a client in another language looks like, and it is the proof that the page
(go doc github.com/ringfence/ringfence/engine/wire), the schemas and the layout of
record frames are enough to write one: the tests hold it against vectors.json and
against a server. It reads the schemas instead of having code generated from them.

    client.py vectors                    hold every vector against this code
    client.py frame                      print a record frame, in hex
    client.py roundtrip HOST:PORT TOPIC  make the topic, store, read, and delete it
    client.py roundtrip unix:PATH TOPIC

RINGFENCE_USER and RINGFENCE_PASSWORD are for servers that ask for them. Needs Python
3.10 and the packages flatbuffers and xxhash; without these the exit code is 77.
"""

import base64
import json
import os
import pathlib
import re
import socket
import struct
import sys

try:
    import flatbuffers
    import flatbuffers.table
    import xxhash
    from flatbuffers import number_types as nt
except ImportError as e:
    print(e, file=sys.stderr)
    sys.exit(77)  # what a test takes as: skip

HERE = pathlib.Path(__file__).resolve().parent

# ---- schemas and messages ----

NUMBERS = {
    "bool": nt.BoolFlags, "ubyte": nt.Uint8Flags, "ushort": nt.Uint16Flags,
    "uint": nt.Uint32Flags, "ulong": nt.Uint64Flags, "long": nt.Int64Flags,
}


def schema(path):
    """The tables of a schema: name -> [(field, type)], in the order of the fields."""
    text = re.sub(r"//.*", "", path.read_text())
    return {
        name: re.findall(r"(\w+)\s*:\s*(\[?\w+\]?)", body)
        for name, body in re.findall(r"table\s+(\w+)\s*\{([^}]*)\}", text)
    }


TABLES = schema(HERE / "../wirefb/wire.fbs") | schema(HERE / "../../../segfile/recfb/batch.fbs")


def encode(table, message):
    """A message, a dict of its fields, as bytes. What it leaves out is zero."""
    b = flatbuffers.Builder(256)
    b.Finish(put_table(b, table, message))
    return bytes(b.Output())


def put_table(b, table, message):
    fields = TABLES[table]
    unknown = message.keys() - {name for name, _ in fields}
    if unknown:
        raise ValueError(f"{table} has no {unknown}")
    parts = {name: put_part(b, typ, message[name]) for name, typ in fields if name in message and typ not in NUMBERS}
    b.StartObject(len(fields))
    for slot, (name, typ) in enumerate(fields):
        if name in parts:
            b.PrependUOffsetTRelativeSlot(slot, parts[name], 0)
        elif name in message:
            b.PrependSlot(NUMBERS[typ], slot, message[name], 0)
    return b.EndObject()


def put_part(b, typ, value):
    """What a field refers to."""
    if typ == "string":
        return b.CreateString(value)
    if typ == "[ubyte]":
        return b.CreateByteVector(value)
    if not typ.startswith("["):
        return put_table(b, typ, value)
    entry = typ[1:-1]
    if entry in NUMBERS:
        size = NUMBERS[entry].bytewidth
        b.StartVector(size, len(value), size)
        for v in reversed(value):
            b.Prepend(NUMBERS[entry], v)
        return b.EndVector()
    refs = [put_part(b, entry, v) for v in value]
    b.StartVector(4, len(refs), 4)
    for r in reversed(refs):
        b.PrependUOffsetTRelative(r)
    return b.EndVector()


def decode(table, data):
    """The fields of a message; what is not there is zero, empty or a table of that."""
    root = flatbuffers.encode.Get(nt.UOffsetTFlags.packer_type, data, 0)
    return get_table(data, root, table)


def get_table(data, pos, table):
    t = flatbuffers.table.Table(data, pos)
    out = {}
    for i, (name, typ) in enumerate(TABLES[table]):
        off = t.Offset(4 + 2 * i)
        out[name] = get_field(t, off and off + pos, typ)
    return out


def get_field(t, at, typ):
    if typ in NUMBERS:
        return t.Get(NUMBERS[typ], at) if at else NUMBERS[typ].py_type(0)
    if typ == "string":
        return t.String(at).decode("utf-8") if at else ""
    if not typ.startswith("["):
        return get_table(t.Bytes, t.Indirect(at), typ) if at else zero(typ)
    if not at:
        return b"" if typ == "[ubyte]" else []
    start, n, entry = t.Vector(at - t.Pos), t.VectorLen(at - t.Pos), typ[1:-1]
    if entry == "ubyte":
        return bytes(t.Bytes[start : start + n])
    size = NUMBERS[entry].bytewidth if entry in NUMBERS else 4
    return [get_field(t, start + size * i, entry) for i in range(n)]


def zero(table):
    return decode(table, encode(table, {}))


# ---- frames ----

REPLY, FAILED, PUSH = 1, 2, 4
MAX_FRAME = (16 << 20) + (64 << 10)

# key: request, reply, pushed
KEYS = {
    "Hello": (1, "Hello", "HelloReply"), "Authenticate": (2, "Authenticate", "AuthenticateReply"),
    "Ping": (3, "Ping", "Done"), "CreateTopic": (16, "CreateTopic", "Done"), "DeleteTopic": (17, "Topic", "Done"),
    "ListTopics": (18, "ListTopics", "ListTopicsReply"), "DescribeTopic": (19, "DescribeTopic", "DescribeTopicReply"),
    "OpenProducer": (32, "OpenProducer", "OpenProducerReply"), "Produce": (33, "Produce", "ProduceReply"),
    "CloseProducer": (34, "CloseProducer", "Done"), "OpenConsumer": (48, "OpenConsumer", "OpenConsumerReply"),
    "Fetch": (49, "Fetch", "Page"), "CloseConsumer": (50, "CloseConsumer", "Done"), "Lag": (51, "Lag", "LagReply"),
    "Subscribe": (52, "Subscribe", "Done", "Page"), "Credit": (53, "Credit", None), "Commit": (56, "Commit", "Done"),
}


def frame(key, flags, id, table, message, records=b""):
    m = encode(table, message)
    return struct.pack("<IHHII", len(m) + len(records), key, flags, id, len(m)) + m + records


class Failed(Exception):
    """A request that failed, or (id 0) the reason why the connection ends."""

    def __init__(self, error):
        super().__init__(f"{error['code']:#x}: {error['detail']}")
        self.code = error["code"]
        self.retryable = bool(error["code"] & 0x8000)


class Connection:
    """One connection; its requests may be sent without waiting for their replies."""

    def __init__(self, address, user="", password=""):
        if address.startswith("unix:"):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(30)
            self.sock.connect(address[5:])
        else:
            host, port = address.rsplit(":", 1)
            self.sock = socket.create_connection((host, int(port)), timeout=30)
        self.sent = {}  # id -> table of the reply and of what is pushed
        self.came = {}  # id -> what came and was not asked for yet
        self.last = 0
        self.hello = self.call("Hello", magic=0x31464E52, min_version=1, max_version=1, client="client.py")
        if self.hello["authenticate"]:
            self.call("Authenticate", mechanism="password", user=user, secret=password.encode())

    def send(self, request, records=b"", **message):
        key, table, *answers = KEYS[request]
        self.last += 1
        if answers != [None]:
            self.sent[self.last] = answers
        self.sock.sendall(frame(key, 0, self.last, table, message, records))
        return self.last

    def call(self, request, **message):
        return self.wait(self.send(request, **message))[0]

    def wait(self, id):
        """The next thing that answers a request: message, record frames, whether there will be more."""
        while not self.came.get(id):
            self.receive()
        answer = self.came[id].pop(0)
        if isinstance(answer, Failed):
            raise answer
        return answer

    def receive(self):
        length, _, flags, id, size = struct.unpack("<IHHII", self.exactly(16))
        if size > length or length > MAX_FRAME:
            raise ValueError(f"a head that is none: length {length}, message {size}")
        body = self.exactly(length)
        message, records = body[:size], body[size:]
        if flags & FAILED:
            answer = Failed(decode("Error", message))
            if id == 0:
                raise answer
        else:
            pushed = bool(flags & PUSH)
            answer = decode(self.sent[id][pushed], message), records, pushed
        if not flags & PUSH:
            del self.sent[id]
        self.came.setdefault(id, []).append(answer)

    def exactly(self, n):
        data = bytearray()
        while len(data) < n:
            piece = self.sock.recv(min(n - len(data), 1 << 20))
            if not piece:
                raise ConnectionError("the server closed the connection")
            data += piece
        return bytes(data)


# ---- record frames ----

HEADER = struct.Struct("<4sHBBIIIIQqqIIQQQQQ16xq4xI")
NO_VALUE = 0xFFFFFFFF
KEYLESS_SEED = 0x6B65796C6573736B


def crc_table():
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        yield i


CRC = list(crc_table())


def crc32c(data, salt=0):
    """The CRC-32C of data that begins with what a salt makes of it."""
    c = ~(salt * 0x9E3779B97F4A7C15 >> 32) & 0xFFFFFFFF
    for byte in data:
        c = CRC[(c ^ byte) & 0xFF] ^ c >> 8
    return c ^ 0xFFFFFFFF


def position(key, producer, seq):
    if key is None:
        return xxhash.xxh3_64_intdigest(struct.pack("<QQ", producer, seq >> 10), KEYLESS_SEED) >> 32
    return xxhash.xxh3_64_intdigest(key) >> 32


def build_records(producer, first_seq, records):
    """A record frame of records (key, value, time in ms, headers), numbered from first_seq on."""
    data, key_ends, value_ends, header_ends = bytearray(), [], [], []
    for key, value, _, headers in records:
        data += key or b""
        key_ends.append(len(data))
        data += value or b""
        value_ends.append(len(data))
        for k, v in headers:
            data += struct.pack("<II", len(k), NO_VALUE if v is None else len(v)) + k + (v or b"")
        header_ends.append(len(data))
    payload = encode("Batch", {
        "data": bytes(data), "key_ends": key_ends, "value_ends": value_ends, "header_ends": header_ends,
        "timestamps": [r[2] for r in records],
        "null_keys": bits(r[0] is None for r in records), "null_values": bits(r[1] is None for r in records),
    })
    times = [r[2] for r in records]
    places = [position(r[0], producer, first_seq + i) for i, r in enumerate(records)]
    head = HEADER.pack(
        b"RFrm", 1, 0, 0, HEADER.size + len(payload), len(payload), len(payload), len(records), 0,
        min(times), max(times), min(places), max(places), producer, first_seq, first_seq + len(records) - 1, 0,
        xxhash.xxh3_64_intdigest(payload), 0, 0,
    )[:-4]
    return head + struct.pack("<I", crc32c(head)) + payload


def bits(flags):
    flags = list(flags)
    out = bytearray((len(flags) + 7) // 8)
    for i, f in enumerate(flags):
        out[i // 8] |= f << i % 8
    return bytes(out)


def read_records(frames, salt=0):
    """The records of a page's frames: (offset, key, value, time, headers)."""
    page, at = frames, 0
    while at < len(page):
        frames = page[at:]
        (magic, version, codec, flags, length, _, _, count, base, min_time, _, _, _, _, _, _, _, digest, _, crc) = HEADER.unpack_from(frames)
        kinds = [(1, 0), (2, 4)] if salt else [(1, 0)]  # the other is lent
        if magic != b"RFrm" or (version, flags) not in kinds or crc != crc32c(frames[: HEADER.size - 4], salt):
            raise ValueError("no record frame, or a damaged one")
        payload, at = frames[HEADER.size : length], at + length
        if salt:  # as they lie in a file
            at = behind(page, at)
        if digest != xxhash.xxh3_64_intdigest(payload):
            raise ValueError("the payload is damaged")
        if codec != 0:
            raise ValueError(f"codec {codec}: this client does not decompress")
        batch = decode("Batch", payload)
        data, start = batch["data"], 0
        for i in range(count):
            key_end, value_end = batch["key_ends"][i], batch["value_ends"][i]
            end = batch["header_ends"][i] if batch["header_ends"] else value_end
            key = None if bit(batch["null_keys"], i) else data[start:key_end]
            value = None if bit(batch["null_values"], i) else data[key_end:value_end]
            time = batch["timestamps"][i] if batch["timestamps"] else min_time
            yield base + i, key, value, time, read_headers(data[value_end:end])
            start = end


def behind(page, at):
    """Where the frame begins that comes behind one which ends at a byte of a page."""
    at = -(-at // 64) * 64
    for _ in range(63):
        if at >= len(page) or page[at : at + 4] != bytes(4):
            break
        at += 64
    return at


def bit(column, i):
    return bool(column) and bool(column[i // 8] >> i % 8 & 1)


def read_headers(data):
    out = []
    while data:
        k, v = struct.unpack_from("<II", data)
        data = data[8:]
        key, data = data[:k], data[k:]
        value = None if v == NO_VALUE else data[:v]
        data = data[len(value or b"") :]
        out.append((key, value))
    return out


# ---- what the command does ----

RECORDS = [
    (b"key", b"value", 1_700_000_000_000, [(b"h", b"1"), (b"null", None)]),
    (None, None, 1_700_000_000_001, []),
    (b"", b"", 1_699_999_999_999, []),
]


def vectors():
    all = json.loads((HERE / "vectors.json").read_text())
    for v in all:
        meaning, data = v["message"], bytes.fromhex(v["frame"])
        for name, typ in TABLES[v["table"]]:
            if typ == "[ubyte]" and name in meaning:
                meaning[name] = base64.b64decode(meaning[name])
        length, key, flags, id, size = struct.unpack("<IHHII", data[:16])
        records = bytes.fromhex(v.get("records", ""))
        expect(v, (key, flags, id), (v["key"], v["flags"], v["id"]))
        expect(v, (length, size), (len(data) - 16 + len(records), len(data) - 16))
        expect(v, decode(v["table"], data[16:]), meaning)
        # Another builder lays a message out in another way: the meaning is the same.
        expect(v, decode(v["table"], encode(v["table"], meaning)), meaning)
        for i, (offset, *record) in enumerate(read_records(records, meaning.get("salt", 0))):
            expect(v, (offset, tuple(record)), (1000 * (flags != 0) + i, RECORDS[i % 3]))
    for name, (key, *tables) in KEYS.items():
        for table, flags in zip(tables, (0, REPLY, REPLY | PUSH)):
            if table and not any((v["key"], v["flags"], v["table"]) == (key, flags, table) for v in all):
                raise AssertionError(f"no vector of {name} with flags {flags} has the table {table}")
    # Messages as this code lays them out, for the other side to read.
    print(json.dumps([{**v, "frame": frame(v["key"], v["flags"], v["id"], v["table"], v["message"]).hex(),
                       "message": plain(v["message"])} for v in all]))


def plain(message):
    return {k: base64.b64encode(v).decode() if isinstance(v, bytes) else v for k, v in message.items()}


def expect(vector, got, want):
    if got != want:
        raise AssertionError(f"{vector['name']}: got {got}, want {want}")


def roundtrip(address, topic):
    c = Connection(address, os.environ.get("RINGFENCE_USER", ""), os.environ.get("RINGFENCE_PASSWORD", ""))
    c.call("CreateTopic", topic=topic, bits=8)
    try:
        fails(17, c.call, "CreateTopic", topic=topic)
        fails(16, c.call, "DescribeTopic", topic=topic + "-that-is-not-there")
        want, frames, producer = store(c, topic)
        consume(c, topic, want)
        subscribe(c, topic, want)
        again(c, topic, producer, frames)
    finally:
        c.call("DeleteTopic", topic=topic)
    print(f"{len(want)} records stored and read, sent twice and stored once")


def store(c, topic):
    """Sends frames without waiting in between."""
    p = c.call("OpenProducer", topic=topic)
    frames = [build_records(p["id"], 1 + 3 * i, RECORDS) for i in range(20)]
    ids = [c.send("Produce", f, producer=p["producer"]) for f in frames]
    c.call("Ping")  # among them
    for id in ids:
        assert not c.wait(id)[0]["repeats"]
    c.call("CloseProducer", producer=p["producer"])
    fails(26, c.call, "CloseProducer", producer=p["producer"])
    return RECORDS * 20, frames, p["id"]


def consume(c, topic, want):
    """Reads everything page by page, and goes on from a cursor and from a group."""
    r = c.call("OpenConsumer", topic=topic, **{"from": 1})
    got, cursor = [], r["cursor"]
    while len(got) < len(want):
        page, frames, _ = c.wait(c.send("Fetch", consumer=r["consumer"], max_bytes=2000, wait_ms=10000))
        got += taken(page, frames)
        if cursor == r["cursor"]:
            cursor, behind = page["cursor"], len(got)
    assert sorted(map(repr, got)) == sorted(map(repr, want)), got
    page, frames, _ = c.wait(c.send("Fetch", consumer=r["consumer"], max_bytes=2000))
    assert page["caught_up"] and not frames, page
    assert c.call("Lag", consumer=r["consumer"], cursor=cursor)["records"] == len(want) - behind
    c.call("Commit", topic=topic, group="readers", cursor=cursor)
    c.call("CloseConsumer", consumer=r["consumer"])
    for start in {"from": 3, "cursor": cursor}, {"from": 0, "group": "readers"}:
        r = c.call("OpenConsumer", topic=topic, **start)
        page, frames, _ = c.wait(c.send("Fetch", consumer=r["consumer"], max_bytes=1 << 20, wait_ms=10000, stored=True))
        assert len(taken(page, frames)) == len(want) - behind
        c.call("CloseConsumer", consumer=r["consumer"])


def subscribe(c, topic, want):
    """Has everything pushed, a window at a time."""
    r = c.call("OpenConsumer", topic=topic, **{"from": 1})
    id = c.send("Subscribe", consumer=r["consumer"], window=2000, max_bytes=1000)
    got = []
    while len(got) < len(want):
        page, frames, _ = c.wait(id)
        got += taken(page, frames)
        c.send("Credit", consumer=r["consumer"], bytes=len(frames))
    assert sorted(map(repr, got)) == sorted(map(repr, want)), got
    c.call("CloseConsumer", consumer=r["consumer"])
    while c.wait(id)[2]:
        pass


def taken(page, frames):
    return [tuple(record) for offset, *record in read_records(frames, page["salt"]) if page["first"] <= offset < page["next"]]


def again(c, topic, id, frames):
    """Sends everything again under the same id: nothing is stored twice."""
    p = c.call("OpenProducer", topic=topic, id=id)
    ids = [c.send("Produce", f, producer=p["producer"]) for f in frames]
    for i in ids:
        assert c.wait(i)[0]["repeats"] == 3
    broken = bytearray(build_records(id, 1000, RECORDS))
    broken[-1] ^= 1
    fails(25, c.wait, c.send("Produce", bytes(broken), producer=p["producer"]))
    fails(24, c.wait, c.send("Produce", build_records(id, 1000, RECORDS), producer=p["producer"]))


def fails(code, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Failed as e:
        if e.code != code:
            raise
        return
    raise AssertionError(f"{args} {kwargs} did not fail with {code}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["vectors"]:
            vectors()
        case ["frame"]:
            print(build_records(42, 7, RECORDS).hex())
        case ["roundtrip", address, topic]:
            roundtrip(address, topic)
        case _:
            sys.exit(__doc__)
