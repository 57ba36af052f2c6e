package main

import "github.com/spf13/cobra"

func (a *app) topicCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "topic", Short: "Make, list, split, merge, roll and delete topics"}
	cmd.AddCommand(a.topicCreateCommand(), a.topicLsCommand(), a.topicDescribeCommand(), a.topicSplitCommand(),
		a.topicMergeCommand(), a.topicRollCommand(), a.topicDeleteCommand(), a.topicPolicyCommand())
	return cmd
}
