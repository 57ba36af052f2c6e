package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/segfile"
)

func init() {
	parts["die-rolled"] = func(dir string) int {
		return playDieHalfWay(dir, func(ctx context.Context, e *Engine) error {
			_, err := e.Roll(ctx, "left")
			return err
		})
	}
	parts["die-split"] = func(dir string) int {
		return playDieHalfWay(dir, func(ctx context.Context, e *Engine) error {
			_, _, err := e.SplitRange(ctx, "left", 0)
			return err
		})
	}
}

// playDieHalfWay stores ten records of one producer, half of them in a segment that then
// closes, with one of another producer in front, and dies.
func playDieHalfWay(dir string, closeIt func(context.Context, *Engine) error) int {
	e, err := Open(dir, small(Options{}))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	ctx := context.Background()
	err = e.CreateTopic(ctx, "left", TopicOptions{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	first, err := e.NewProducer(ProducerOptions{Topic: "left", ID: 8})
	if err == nil {
		_, err = first.Produce(ctx, Record{Key: []byte("k"), Value: []byte("first")})
	}
	p, perr := e.NewProducer(ProducerOptions{Topic: "left", ID: 7})
	err = errors.Join(err, perr)
	for i := 0; i < 10 && err == nil; i++ {
		if i == 5 {
			err = closeIt(ctx, e)
		}
		if err == nil {
			_, err = p.Produce(ctx, Record{Key: []byte("k"), Value: text("left %d", i)})
		}
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("dying")
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// A segment that a killed process left open and whose start mark is damaged, or gone,
// keeps its records, and the range goes on and still knows what each producer sent: from
// the segment before it, and where it is the first of its range from the range before.
func TestLostStartMark(t *testing.T) {
	for name, damage := range map[string]func(path string){
		"a byte":       func(path string) { flip(t, path, segfile.DataStart+140, 1) },
		"all of it":    func(path string) { flip(t, path, segfile.DataStart, 4096) },
		"not a bit":    func(string) {},
		"and its slot": func(path string) { flip(t, path, segfile.DataStart-4096, 4096+200) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Run("rolled", func(t *testing.T) { lostStartMark(t, "die-rolled", damage, 11) })
			t.Run("split", func(t *testing.T) { lostStartMark(t, "die-split", damage, 5) })
		})
	}
}

func lostStartMark(t *testing.T, part string, damage func(path string), next uint64) {
	dir := t.TempDir()
	if out, err := child(t, part, dir).Output(); !strings.Contains(string(out), "dying") {
		t.Fatalf("the child did not come to its death: %v, %s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "log", "topics", "*", "*.seg"))
	must(t, err)
	if len(files) != 2 {
		t.Fatalf("%d files", len(files))
	}
	damage(files[1])
	for again := range 2 {
		e := open(t, dir, Options{})
		first := newProducer(t, e, ProducerOptions{Topic: "left", ID: 8})
		if pl, err := first.Produce(within(t), Record{Key: []byte("k"), Value: []byte("first")}); err != nil || !pl.Duplicate {
			t.Fatalf("the producer that wrote in front alone: %+v %v", pl, err)
		}
		must(t, first.Close(within(t)))
		p := newProducer(t, e, ProducerOptions{Topic: "left", ID: 7})
		for i := range 11 {
			pl, err := p.Produce(within(t), Record{Key: []byte("k"), Value: text("left %d", i)})
			if known := i < 10 || again > 0; err != nil || pl.Duplicate != known || !known && pl.First != next {
				t.Fatalf("record %d: %+v %v", i, pl, err)
			}
		}
		must(t, p.Close(within(t)))
		if got := readAll(t, e, "left", FromStart()); len(got) != 12 || got[11] != "left 10" {
			t.Fatalf("%q", got)
		}
		shut(t, e)
	}
}
