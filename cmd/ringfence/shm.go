package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/ringfence/ringfence/engine/server"
	"github.com/spf13/cobra"
)

// sharedFrontends is what /shm answers: a bounded list of clients, and one of users.
type sharedFrontends struct {
	Clients []server.SharedClient `json:"clients"`
	Users   []server.SharedUser   `json:"users"`
}

func frontends(s *server.Server) sharedFrontends {
	f := sharedFrontends{s.SharedClients(), s.Stats().Shared.Users}
	if f.Users == nil {
		f.Users = []server.SharedUser{}
	}
	return f
}

// mostFrontends bounds an answer: some KiB for each client and each user.
const mostFrontends = 64 << 20

func (a *app) shmCommand() *cobra.Command {
	var admin string
	cmd := &cobra.Command{
		Use:   "shm",
		Short: "Show the programs that share memory with a server",
		Long: `Show which programs share memory with a server (serve --shm) now, and what each sent:
frames, how many of them were copied and how many written from where they lie, what was
refused and why, what is not answered yet, and how much memory is theirs. Below that the
same by user, since the server started, and what each read from the files of closed segments.

It asks the server's admin address (serve --admin), which is the operator's.`,
		Example: `  ringfence shm
  ringfence shm --admin 127.0.0.1:4041 --json`,
		Annotations: map[string]string{askedByAdmin: ""},
		RunE:        func(cmd *cobra.Command, _ []string) error { return a.showFrontends(cmd.Context(), admin) },
	}
	cmd.Flags().StringVar(&admin, "admin", "127.0.0.1:4041", "the server's admin address")
	return cmd
}

func (a *app) showFrontends(ctx context.Context, admin string) error {
	ctx, stop := context.WithTimeout(ctx, a.client.timeout)
	defer stop()
	f, err := askFrontends(ctx, admin)
	if err != nil {
		return err
	}
	return a.report(f, func() { a.printFrontends(&f) })
}

func askFrontends(ctx context.Context, admin string) (f sharedFrontends, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/shm", nil)
	if err != nil {
		return f, usageError{fmt.Errorf("--admin %s: %w", admin, err)}
	}
	asker := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // and no proxy: it is the operator's own
	r, err := asker.Do(req)
	switch {
	case err != nil && strings.Contains(err.Error(), "malformed HTTP"): // with bytes of what was said in place of it
		return f, unreachable{fmt.Errorf("%s does not speak HTTP, as an admin address does: clients may reach the server there (serve --listen); give what its --admin says", admin)}
	case err != nil:
		return f, unreachable{fmt.Errorf("%w; is this the address that its --admin has?", err)}
	}
	defer r.Body.Close()
	body, err := io.ReadAll(io.LimitReader(r.Body, mostFrontends))
	switch {
	case err != nil:
		return f, unreachable{err}
	case r.StatusCode == http.StatusServiceUnavailable:
		return f, unreachable{fmt.Errorf("the server at %s is not ready: %s", admin, strings.TrimSpace(string(body)))}
	case r.StatusCode != http.StatusOK:
		return f, fmt.Errorf("%s is no admin address of a server that shares memory: it answers /shm with %s", admin, r.Status)
	}
	if err := json.Unmarshal(body, &f); err != nil {
		return f, fmt.Errorf("%s is no admin address of a server that shares memory: %w", admin, err)
	}
	return f, nil
}

func (a *app) printFrontends(f *sharedFrontends) {
	if len(f.Users) == 0 {
		a.printf("no program shares memory with this server, nor did one since it started\n")
		return
	}
	rows := [][]string{{"CONNECTION", "PROCESS", "USER", "SINCE", "MEMORY", "FRAMES", "BYTES", "COPIED", "LENT", "REFUSED", "UNANSWERED", "RING FULL", "WAITED"}}
	for i := range f.Clients {
		c := &f.Clients[i]
		row := []string{fmt.Sprint(c.Connection), fmt.Sprint(c.PID), userName(c.UID), dateText(c.Since.UnixMilli()), bytesText(c.Bytes)}
		row = append(row, useText(&c.SharedUse)...)
		rows = append(rows, append(row, countText(c.Unanswered), countText(c.RingFull), timeText(c.Waited)))
	}
	if len(f.Clients) > 0 {
		a.table(rows...)
	} else {
		a.printf("no program shares memory now\n")
	}
	a.printf("\n")
	rows = [][]string{{"USER", "CLIENTS", "CAME", "TURNED AWAY", "CUT OFF", "MEMORY", "FRAMES", "BYTES", "COPIED", "LENT", "REFUSED", "READ"}}
	for i := range f.Users {
		u := &f.Users[i]
		name := userName(u.UID)
		if u.Others {
			name = "others"
		}
		row := []string{name, countText(u.Clients), countText(u.Attached), reasonsText(u.TurnedAway), countText(u.Hostile + u.Faults), bytesText(u.Bytes)}
		rows = append(rows, append(append(row, useText(&u.SharedUse)...), bytesText(u.FileBytes)))
	}
	a.table(rows...)
}

func useText(u *server.SharedUse) []string {
	return []string{countText(u.Frames), bytesText(u.FrameBytes), countText(u.Copies), countText(u.Lent), reasonsText(u.Refused)}
}

// reasonsText is how many, and why.
func reasonsText(by map[string]int64) string {
	if len(by) == 0 {
		return "0"
	}
	var list []string
	for _, reason := range slices.Sorted(maps.Keys(by)) {
		list = append(list, fmt.Sprintf("%s %s", countText(by[reason]), reason))
	}
	return strings.Join(list, ", ")
}

// userName is the name of a user on this host, if it has one.
func userName(uid uint32) string {
	number := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(number); err == nil {
		return u.Username
	}
	return number
}
