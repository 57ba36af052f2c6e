package engine

import (
	"bufio"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// The drill: three producers in their own processes write one topic, two through shared
// memory, of which one is killed again and again, and one over TCP. Then their server,
// with its engine, is killed and started again under them. Each id of the killed one has
// three lives, of which the later begin with its first record again. In the end every
// acknowledged record is there once, those of a key in order. With RINGFENCE_LONG a life is
// a second and there are sixty.
func TestI02DrillOfKills(t *testing.T) {
	t.Run("copied", func(t *testing.T) { drillOfKills(t, "0") })
	t.Run("written from where it lies", func(t *testing.T) { drillOfKills(t, "1") })
}

func drillOfKills(t *testing.T, trust string) {
	dir := filepath.Join(t.TempDir(), "d")
	path := "shm:" + dir + ".sock"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	tcp := l.Addr().String()
	l.Close()
	w := newWriters(t)
	serve := func() *exec.Cmd {
		cmd := childIn(w.ctx, t, "shm serve", dir, tcpEnv+"="+tcp, trustEnv+"="+trust)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		if line, _ := bufio.NewReader(out).ReadString('\n'); line != "serving\n" {
			t.Fatalf("the server said %q", line)
		}
		return cmd
	}
	die := func(cmd *exec.Cmd) {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	const steady, far, victim = 901, 902, 1000
	serving := serve()
	near, remote := w.start(path, steady), w.start(tcp, far)
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	kills, again := 0, 0
	lives := 6
	if long() {
		lives = 60
	}
	for life := range lives {
		id := victim + life/3
		before := w.of(id)
		one := w.start(path, id)
		one.until(1 + rng.IntN(300))
		if long() {
			time.Sleep(time.Second)
		}
		one.kill()
		kills++
		if life%3 > 0 && before > 0 {
			again++
		}
	}
	restarts := 0
	last := w.start(path, victim+lives)
	for range lives / 3 {
		last.until(1 + rng.IntN(500))
		die(serving)
		serving = serve()
		restarts++
		for _, one := range []*writer{near, remote, last} {
			one.until(1) // each goes on
		}
	}
	for _, one := range []*writer{near, remote, last} {
		one.finish()
	}
	die(serving)

	e := open(t, dir, Options{})
	found, skips := w.check(e, nil)
	for _, s := range skips {
		if s.Damaged {
			t.Errorf("skips %+v", s)
		}
	}
	if again == 0 || found < w.of(steady)+w.of(far) {
		t.Errorf("%d lives began with records that were stored: the test does not test it", again)
	}
	t.Logf("%d records, %d acknowledgements, %d of the one that stayed, %d over TCP; a producer was killed %d times, %d times after a life that had stored some; the server was killed %d times",
		found, w.all(), w.of(steady), w.of(far), kills, again, restarts+1)
}
