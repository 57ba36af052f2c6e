package host

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/lni/dragonboat/v4/raftio"
	pb "github.com/lni/dragonboat/v4/raftpb"
)

// A vote alone is durable; a commit index alone costs no write, and comes along
// with the next entries.
func TestWhatIsSaved(t *testing.T) {
	d := newSimDisk(rand.New(rand.NewPCG(3, 3)))
	j := mustOpenSim(t, d)
	dir := t.TempDir()
	fs, err := newRaftFS(dir, quiet())
	if err != nil {
		t.Fatal(err)
	}
	l := &logDB{journal: j, dir: dir, fs: fs}
	if err := l.SaveBootstrapInfo(1, 2, pb.Bootstrap{Join: true}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		update pb.Update
		writes int
	}{
		{pb.Update{State: pb.State{Term: 1, Vote: 2}}, 1},
		{pb.Update{State: pb.State{Term: 1, Vote: 2}}, 0},
		{pb.Update{State: pb.State{Term: 2, Vote: 2}}, 1},
		{pb.Update{State: pb.State{Term: 2, Vote: 3}}, 1},
		{pb.Update{State: pb.State{Term: 2, Vote: 4}}, 1},
		{pb.Update{EntriesToSave: []pb.Entry{{Index: 1, Term: 2}, {Index: 2, Term: 2}}, State: pb.State{Term: 2, Vote: 4, Commit: 1}}, 1},
		{pb.Update{State: pb.State{Term: 2, Vote: 4, Commit: 2}}, 0},
		{pb.Update{EntriesToSave: []pb.Entry{{Index: 3, Term: 2}}, State: pb.State{Term: 2, Vote: 4, Commit: 3}}, 1},
		{pb.Update{EntriesToSave: []pb.Entry{{Index: 3, Term: 3}}, State: pb.State{Term: 3, Commit: 2}}, 1},
		{pb.Update{}, 0},
	} {
		before := d.writes
		c.update.ShardID, c.update.ReplicaID = 1, 2
		if err := l.SaveRaftState([]pb.Update{c.update}, 1); err != nil {
			t.Fatal(err)
		}
		if got := d.writes - before; got != c.writes {
			t.Errorf("%+v: %d writes, want %d", c.update, got, c.writes)
		}
		again := &logDB{journal: mustOpenSim(t, d.reboot())}
		if c.writes == 0 {
			continue
		}
		rs, err := again.ReadRaftState(1, 2, 0)
		if err != nil || rs.State != c.update.State {
			t.Errorf("%+v came back as %+v: %v", c.update.State, rs.State, err)
		}
	}
	l = &logDB{journal: mustOpenSim(t, d.reboot()), dir: dir, fs: fs}
	rs, err := l.ReadRaftState(1, 2, 0)
	if err != nil || rs.FirstIndex != 1 || rs.EntryCount != 3 {
		t.Errorf("%+v, %v", rs, err)
	}
	es, _, err := l.IterateEntries(nil, 0, 1, 2, 2, 4, 1<<20)
	if err != nil || len(es) != 2 || es[1].Index != 3 || es[1].Term != 3 {
		t.Errorf("%+v, %v", es, err)
	}
	if es, _, _ = l.IterateEntries(nil, 0, 1, 2, 1, 4, 1); len(es) != 1 {
		t.Errorf("%d entries within one byte, want the first alone", len(es))
	}
	if _, err := l.ReadRaftState(9, 9, 0); !errors.Is(err, raftio.ErrNoSavedLog) {
		t.Error(err)
	}
	if _, err := l.GetBootstrapInfo(9, 9); !errors.Is(err, raftio.ErrNoBootstrapInfo) {
		t.Error(err)
	}
	if b, err := l.GetBootstrapInfo(1, 2); err != nil || !b.Join {
		t.Error(b, err)
	}
	if err := l.RemoveEntriesTo(1, 2, 2); err != nil {
		t.Fatal(err)
	}
	if rs, err = l.ReadRaftState(1, 2, 2); err != nil || rs.FirstIndex != 3 || rs.EntryCount != 1 {
		t.Errorf("%+v, %v", rs, err)
	}
	if rs, err = l.ReadRaftState(1, 2, 3); err != nil || rs.EntryCount != 0 {
		t.Errorf("%+v, %v", rs, err)
	}
	if err := l.ImportSnapshot(pb.Snapshot{ShardID: 1, Index: 90, Term: 7, Witness: true}, 2); err == nil {
		rs, err = l.ReadRaftState(1, 2, 90)
		if err != nil || rs.State.Commit != 90 || rs.EntryCount != 0 {
			t.Errorf("imported: %+v, %v", rs, err)
		}
	} else {
		t.Error(err)
	}
	if infos, _ := l.ListNodeInfo(); len(infos) != 1 {
		t.Errorf("%v", infos)
	}
	if err := l.RemoveNodeData(1, 2); err != nil {
		t.Fatal(err)
	}
	if infos, _ := l.ListNodeInfo(); len(infos) != 0 {
		t.Errorf("removed, but there: %v", infos)
	}
}

// The layout is pinned: whoever changes it changes journalVersion.
func TestJournalGolden(t *testing.T) {
	h := slotHeader{version: 2, blocks: 512, generation: 3, salt: 0x1122334455667788, start: 9, disk: [16]byte{1, 15: 2}}
	const header = "5246726166740001020000000002000003000000000000008877665544332211090000000000000001000000000000000000000000000002f8ab373e"
	const older = "524672616674000101000000000000000300000000000000887766554433221109000000000000000100000000000000000000000000000227ad163b"
	if got := hex.EncodeToString(h.encode()[:slotHeaderLen]); got != header {
		t.Errorf("slot header\n%s, want\n%s", got, header)
	}
	b := make([]byte, block)
	if _, err := hex.Decode(b, []byte(older)); err != nil {
		t.Fatal(err)
	}
	h.version, h.blocks = 1, 0
	if got, err := decodeSlotHeader(b); err != nil || got != h {
		t.Errorf("version 1: %+v, %v", got, err)
	}
	f := beginFrame(nil)
	for _, o := range []op{
		{kind: opState, key: replicaKey{2, 1}, state: pb.State{Term: 3, Vote: 1, Commit: 300}},
		{kind: opEntries, key: replicaKey{2, 1}, entries: []pb.Entry{{Term: 3, Index: 300, Key: 7, Cmd: []byte("x")}}},
		{kind: opFirst, key: replicaKey{2, 1}, first: 300},
		{kind: opRemove, key: replicaKey{200, 1}},
	} {
		f = o.append(f)
	}
	f = endFrame(f, kindRecords, 5, h.salt)
	const frame = "698b0f8edc569bdb4652464d03000000050000000000000027000000020201070803100118ac02" +
		"0302010d010b000301ac0203070701787f06020102ac0207c8010100"
	n, _ := frameLen(f)
	if got := hex.EncodeToString(f[:n]); got != frame {
		t.Errorf("frame\n%s, want\n%s", got, frame)
	}
	if len(f) != block || !zero(f[n:]) {
		t.Errorf("%d bytes, or padding that is not zero", len(f))
	}
}

// FuzzRecords replays any bytes: it never panics, and what it accepts it brings back
// unchanged from its own checkpoint.
func FuzzRecords(f *testing.F) {
	m := &raftModel{rng: rand.New(rand.NewPCG(1, 2)), want: image{}}
	for range 30 {
		var b []byte
		for _, o := range m.next() {
			b = o.append(b)
			m.took([]op{o})
		}
		f.Add(b[:min(len(b), 500)])
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		got := image{}
		if got.load(payload) != nil || got.check() != nil {
			return
		}
		want := dump(got)
		again := image{}
		if err := again.load(want); err != nil {
			t.Fatal(err)
		}
		if got := dump(again); !bytes.Equal(got, want) {
			t.Fatalf("%x came back as %x", want, got)
		}
	})
}

// FuzzFrame reads any bytes as a slot and as a frame; what is accepted is what would
// be written.
func FuzzFrame(f *testing.F) {
	f.Add(slotHeader{version: 2, blocks: 9, generation: 3, salt: 5, start: 9}.encode(), uint64(5))
	f.Add(endFrame(append(beginFrame(nil), "payload"...), kindRecords, 2, 5), uint64(5))
	f.Fuzz(func(t *testing.T, b []byte, salt uint64) {
		if len(b) >= block {
			if h, err := decodeSlotHeader(b); err == nil && !bytes.Equal(h.encode()[:slotHeaderLen], b[:slotHeaderLen]) {
				t.Fatalf("accepts slot header %x", b[:slotHeaderLen])
			}
		}
		if fr, n, ok := frameAt(b, 0, salt); ok {
			again := endFrame(append(beginFrame(nil), fr.payload...), fr.kind, fr.seq, salt)
			if int64(len(again)) != n || !bytes.Equal(again[:frameHeaderLen+len(fr.payload)], b[:frameHeaderLen+len(fr.payload)]) {
				t.Fatalf("accepts frame %x", b)
			}
		}
	})
}
