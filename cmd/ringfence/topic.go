package main

import "github.com/spf13/cobra"

func (a *app) topicCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "topic", Short: "Make, list, split, merge and delete topics"}
	cmd.AddCommand(a.topicCreateCommand(), a.topicLsCommand(), a.topicDescribeCommand(), a.topicSplitCommand(),
		a.topicMergeCommand(), a.topicDeleteCommand(), a.topicPolicyCommand())
	return cmd
}

// subcommands are the commands of the program, in the order of the help.
func (a *app) subcommands() []*cobra.Command {
	return []*cobra.Command{
		a.demoCommand(), a.topicCommand(), a.serveCommand(), a.produceCommand(), a.consumeCommand(), a.groupCommand(), a.cursorCommand(), a.userCommand(), a.aclCommand(), a.quotaCommand(), a.contextCommand(), a.segmentCommand(),
		a.doctorCommand(), a.benchCommand(), a.versionCommand(),
		a.demoChildCommand(), a.benchChildCommand(), a.benchServeCommand(), // hidden: what demo and bench start and kill
	}
}
