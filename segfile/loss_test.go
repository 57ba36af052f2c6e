package segfile

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"path"
	"testing"
)

// A file that is missing is given up whole or not at all, whatever happens meanwhile,
// and only for what it was; one that is there is not, and once it is back it is read.
func TestA17GiveUp(t *testing.T) {
	there := map[bool]int{}
	m := testMeta(1)
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 13))
		d := newDisk(seed)
		w := create(t, newTestPool(t, d, lifeGrown), m)
		write(t, w, rng, 5, 2, 300)
		fenceNow(t, w)
		must(t, w.Close())
		n := w.End().Offset - m.Base
		if err := GiveUp(d, m.ID, m.Salt, m.Base, n); !errors.Is(err, fs.ErrExist) {
			t.Fatalf("gave up what is there: %v", err)
		}
		must(t, d.Rename(seg1, "kept"))
		must(t, errors.Join(d.SyncDir(""), d.SyncDir(Dir(m.ID.Range.Topic))))
		d.CutAfter(rng.IntN(6))
		gave := GiveUp(d, m.ID, m.Salt, m.Base, n)
		d = d.Crash(rng)
		known, err := GivenUp(d, m.ID, m.Salt, m.Base, n)
		if err != nil || gave == nil && !known {
			t.Fatalf("seed %d: %v, then %v %v", seed, gave, known, err)
		}
		there[known]++
		must(t, GiveUp(d, m.ID, m.Salt, m.Base, n))
		if known, err := GivenUp(d, m.ID, m.Salt, m.Base, n-1); known || err != nil {
			t.Fatalf("given up with another length: %v", err)
		}
		if known, err := GivenUp(d, m.ID, m.Salt+1, m.Base, n); known || !errors.Is(err, ErrDamaged) {
			t.Fatalf("given up with another salt: %v", err)
		}
		must(t, d.Rename("kept", seg1))
		r, err := OpenReader(d, seg1)
		must(t, err)
		if holes, err := r.Holes(); len(holes) > 0 || err != nil {
			t.Fatalf("the file is back with holes %+v %v", holes, err)
		}
		must(t, r.Close())
		_, err = Verify(d, seg1, nil)
		must(t, err)
		must(t, Unlist(d, m.ID))
		must(t, Unlist(d, m.ID))
		if known, err := GivenUp(d, m.ID, m.Salt, m.Base, n); known || err != nil {
			t.Fatalf("still given up: %v", err)
		}
	}
	if len(there) != 2 {
		t.Errorf("the record was there or not: %v; the test does not test both", there)
	}
}

// A17: the record of losses is there, whole, or not at all, whatever happens while
// it is written.
func TestA17LossRecordCrash(t *testing.T) {
	there := map[bool]int{}
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 12))
		d := newDisk(seed)
		w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
		frames := write(t, w, rng, 10, 2, 300)
		fenceNow(t, w)
		must(t, w.Close())
		flip(t, d, seg1, frames[4].pos+150, 1)
		d.CutAfter(rng.IntN(5))
		_, err := AcceptLoss(d, seg1)
		d = d.Crash(rng)
		r, rerr := OpenReader(d, seg1)
		must(t, rerr)
		holes, herr := r.Holes()
		must(t, herr)
		must(t, r.Close())
		if len(holes) > 1 || err == nil && len(holes) == 0 || len(holes) == 1 && (!holes[0].Accepted || holes[0].Records != 2) {
			t.Fatalf("seed %d: %v, then holes %+v", seed, err, holes)
		}
		there[len(holes) == 1]++
		if _, err := AcceptLoss(d, seg1); err != nil {
			t.Fatalf("seed %d: again: %v", seed, err)
		}
		for _, n := range list(t, d, Dir(testID(1).Range.Topic)) {
			if base := path.Base(seg1); n != base && n != base+lossSuffix {
				t.Errorf("%s is left", n)
			}
		}
	}
	if len(there) != 2 {
		t.Errorf("the record was there or not: %v; the test does not test both", there)
	}
}

// A damaged record of losses accepts nothing.
func TestDamagedLossRecord(t *testing.T) {
	d := newDisk(1)
	w := create(t, newTestPool(t, d, lifeGrown), testMeta(1))
	frames := write(t, w, rand.New(rand.NewPCG(1, 1)), 10, 2, 300)
	fenceNow(t, w)
	must(t, w.Close())
	flip(t, d, seg1, frames[4].pos+16, 1)
	_, err := AcceptLoss(d, seg1)
	must(t, err)
	flip(t, d, seg1+lossSuffix, 30, 1)
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	_, _, err = r.ReadFrames(make([]byte, 8192), frames[4].pos)
	var h *HoleError
	if !errors.Is(err, ErrDamaged) || errors.As(err, &h) && h.Hole.Accepted {
		t.Error(err)
	}
	if _, err := r.Holes(); !errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
}
