package main

import (
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/spf13/cobra"
)

func (a *app) segmentAcceptLossCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "accept-loss FILE",
		Short: "Let reads skip the damaged stretches of a closed segment",
		Long: `Put the stretches of a closed segment that cannot be read on record as lost. Reads
then skip them and report what they skipped, where they failed before. The segment
file itself is not changed; the record lies beside it and can be removed again.
Do this only when no other copy of the records exists.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.withSegment(args[0], false, func(d disk.Disk, name string) error { return a.acceptLoss(d, name, yes) })
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (a *app) acceptLoss(d disk.Disk, name string, yes bool) error {
	rep, err := segfile.Verify(d, name, nil)
	if err != nil && !errors.Is(err, segfile.ErrDamaged) || rep.FileSize == 0 {
		return err
	}
	var records uint64
	fresh := 0
	for _, h := range rep.Holes {
		if !h.Accepted {
			records += h.Records
			fresh++
		}
	}
	if fresh == 0 {
		return a.report(holesJSON(rep.Holes), func() { a.printNoLoss(name, rep) })
	}
	if !yes {
		a.printHoles(rep.Holes)
		question := fmt.Sprintf("Give up %s for good? Type yes: ", plural(records, "record"))
		if records == 0 {
			question = "No record is lost. Let reads skip the damage? Type yes: "
		}
		if !a.confirm(question, "yes") {
			return usageError{errors.New("nothing was changed; type yes, or give --yes")}
		}
	}
	holes, err := segfile.AcceptLoss(d, name)
	if err != nil {
		return err
	}
	return a.report(holesJSON(holes), func() {
		if records == 0 {
			a.printf("%s: no record is lost; the damage is on record, and reads skip it from now on\n", name)
			return
		}
		a.printf("%s: the loss of %s is on record; reads skip them from now on\n", name, plural(records, "record"))
	})
}

// printNoLoss says why there is nothing to accept.
func (a *app) printNoLoss(name string, rep segfile.Report) {
	switch {
	case len(rep.Holes) > 0:
		a.printf("%s: already on record: the loss of %s was accepted, and reads skip them\n", name, plural(acceptedRecords(rep.Holes), "record"))
	case len(rep.Problems) > 0:
		a.printf("%s: there is no loss to accept: the file is damaged, but every record can be read\n", name)
		a.printProblems(rep.Problems)
	default:
		a.printf("%s: there is no loss to accept\n", name)
	}
}

// acceptedRecords is how many records were given up.
func acceptedRecords(holes []segfile.Hole) (n uint64) {
	for _, h := range holes {
		if h.Accepted {
			n += h.Records
		}
	}
	return n
}
