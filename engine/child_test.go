package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// childEnv names the part that a child process plays; childDir is its directory.
const (
	childEnv = "RINGFENCE_ENGINE_CHILD"
	childDir = "RINGFENCE_ENGINE_DIR"
)

// parts are what children can play: each returns the exit status.
var parts = map[string]func(dir string) int{
	"open": func(dir string) int {
		e, err := Open(dir, small(Options{}))
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("opened")
		if err := e.Close(); err != nil {
			fmt.Println(err)
			return 2
		}
		return 0
	},
	// dies as soon as it has a topic with a few records in an open segment.
	"die": func(dir string) int {
		e, err := Open(dir, small(Options{}))
		if err != nil {
			fmt.Println(err)
			return 1
		}
		ctx := context.Background()
		if err := e.CreateTopic(ctx, "left", TopicOptions{}); err != nil && !errors.Is(err, ErrTopicExists) {
			fmt.Println(err)
			return 1
		}
		p, err := e.NewProducer(ProducerOptions{Topic: "left"})
		if err != nil {
			fmt.Println(err)
			return 1
		}
		for i := range 10 {
			if _, err := p.Produce(ctx, Record{Key: []byte("k"), Value: text("left %d", i)}); err != nil {
				fmt.Println(err)
				return 1
			}
		}
		fmt.Println("dying")
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	},
}

// kill leaves dir as a process does that is killed with an open segment.
func kill(t testing.TB, dir string) {
	t.Helper()
	out, err := child(t, "die", dir).Output()
	if !strings.Contains(string(out), "dying") {
		t.Fatalf("the child did not come to its death: %v, %s", err, out)
	}
}

func runChild(name string) int {
	part := parts[name]
	if part == nil {
		fmt.Fprintf(os.Stderr, "no child plays %q\n", name)
		return 3
	}
	return part(os.Getenv(childDir))
}

// child is this test binary as another process.
func child(t testing.TB, name, dir string, env ...string) *exec.Cmd {
	t.Helper()
	return childIn(within(t), t, name, dir, env...)
}

// childIn is child for as long as ctx lasts.
func childIn(ctx context.Context, t testing.TB, name, dir string, env ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), childEnv+"="+name, childDir+"="+dir)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	return cmd
}
