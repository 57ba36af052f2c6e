package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func (a *app) topicDeleteCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete TOPIC",
		Short: "Delete a topic with all its records",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				d, err := l.Describe(ctx, args[0])
				if err != nil {
					return err
				}
				if !yes && !a.confirm(fmt.Sprintf("Delete topic %s with %s (%s)? Type its name: ", d.Name, plural(d.Records, "record"), bytesText(d.Bytes)), d.Name) {
					return a.declined("nothing was deleted; type the topic's name, or give --yes")
				}
				if err := l.DeleteTopic(ctx, args[0]); err != nil {
					return err
				}
				return a.report(topicJSON(d.TopicInfo), func() {
					a.printf("deleted topic %s with %s\n", d.Name, plural(d.Records, "record"))
				})
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// confirm asks a question and wants an exact answer.
func (a *app) confirm(question, want string) bool {
	fmt.Fprint(a.err, question)
	answer, _ := bufio.NewReader(a.in).ReadString('\n') // no answer is a no
	a.answered = answer != ""
	if in, ok := a.in.(*os.File); !ok || !term.IsTerminal(int(in.Fd())) || !strings.HasSuffix(answer, "\n") {
		fmt.Fprintln(a.err) // nobody typed the end of the line
	}
	return strings.TrimSpace(answer) == want
}

// declined is the end of a command whose question was not answered with what it takes: a
// mistake where nobody answered at all, and else what somebody wanted.
func (a *app) declined(what string) error {
	if !a.answered {
		return usageError{errors.New(what)}
	}
	return errors.New(what)
}
