package frontend

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// Every function that a frontend has in the model, what it is called here, and the tests that hold it to its
// behaviour, beside TestInvariants, which runs most of them together. TestEveryFunctionIsTested reads the
// table.
var functions = []struct{ model, name, tests string }{
	{"open/1", "New", "TestNewRefusesWhatNobodyMeans TestReplicationFactorIsClamped"},
	{"create_topic/3", "CreateTopic", "TestCreateTopic"},
	{"produce/4", "Produce", "TestProduce TestProduceNothing TestProduceOverRanges TestProduceIsNotAtomic TestFailedProduceCachesNoHead TestRefusedProduceSeatsAtTheEnd"},
	{"produce_plan/3", "PlanProduce", "TestPlanProduce TestPlanProduceIsAllOrNothing TestPlanProduceStartsOver TestProduceNothing"},
	{"adopt_offsets/4", "AdoptOffsets", "TestAdoptOffsets TestAdoptOffsetsOfAHeadThatIsNotCached TestProduceEndsUnrecovered"},
	{"seed_range_state/4", "SeedRangeState", "TestSeeds"},
	{"seed_unrecovered_range/3", "SeedUnrecoveredRange", "TestSeeds TestProduceEndsUnrecovered"},
	{"unrecovered?/2", "Unrecovered", "TestSeeds"},
	{"due_rolls/1", "DueRolls", "TestThresholdOwesARoll TestPlannedBatchOwesARoll TestRollsFollowOnEachOther"},
	{"request_rolls/2", "RequestRolls", "TestRequestRolls TestAgeRollOfAnEmptyHead"},
	{"fences_to_send/3", "FencesToSend", "TestFencesToSend TestOneFencePerWindow"},
	{"record_fence/5", "RecordFence", "TestFenceAnswerAfterARefusal TestFenceAnswerForAnUnseenSegment TestRollUnderLoad"},
	{"record_seal/5", "RecordSeal", "TestRecordSealSetsTheOffset TestAlreadySealedConverges TestFailedSealChangesNothing TestRecordSealBelowTheStart"},
	{"forget_fence/2", "ForgetFence", "TestForgetFenceKeepsTheRollOwed TestAwaitingFence"},
	{"awaiting_fence?/5", "AwaitingFence", "TestAwaitingFence TestRollUnderLoad"},
	{"range_awaiting_fence/4", "RangeAwaitingFence", "TestRangeAwaitingFence"},
	{"active_roll/2", "ActiveRoll", "TestActiveRoll"},
	{"forget_sealed/4", "ForgetSealed", "TestForgetSealed TestOneRefusalAfterAForeignSeal TestSuccessorOfAFailoverBelowTheRefusal"},
	{"drop_stale_active_segments/1", "DropStaleActiveSegments", "TestDropStale TestDropStaleOfAnExpiredHead TestDropStaleOfARetiredRange TestDropStaleRolls"},
	{"split_range/2", "SplitRange", "TestSplitRange TestSplitToTheLastPosition TestSplitFromABehindView"},
	{"merge_ranges/3", "MergeRanges", "TestMergeRanges"},
	{"learn/3", "Learn", "TestLearn"},
	{"active_range_ids/2", "ActiveRangeIDs", "TestRouteAndVersion TestMergeRanges TestUnknownTopic"},
	{"read/5", "Read", "TestReadOfNothing TestReadStopsAtTheCommitMark TestReadStopsAtTheSealedEdge TestReadPastAnEmptySegment TestReadStepsOverAHole TestUnreadableIsNotTheEnd TestReadFuncIsHeldToItsContract"},
	{"read_consume/5", "ReadConsume", "TestReadConsumeTails TestReadConsumeOverSplits TestReadConsumeFromTheParentsPosition TestReadConsumeOfARetiredRange TestForgedPositions TestFailedPageMovesNothing TestSkips TestSkipWhileCaughtUp TestSkipIsReportedWhenDelivered TestSkipsOfAnAncestor TestPageIsBoundedInReads TestEveryOffsetIsDeliveredOrSkipped"},
	{"stream_history/5", "StreamHistory", "TestStreamHistory TestHistoryPagesMayBeEmpty TestForgedPositions"},
	{"read_history/3", "ReadHistory", "TestReadConsumeOverSplits TestHistoryPagesMayBeEmpty TestUnreadableIsNotTheEnd"},
	{"apply_heal/2", "ApplyHeal", "TestApplyHeal"},
	{"apply_heal_reply/2", "ApplyHealReply", "TestApplyHeal TestApplyHealLosesToAnotherSeal TestApplyHealWithoutAnAnswer"},
	{"commit_offset/4", "CommitOffset", "TestCommitOffset TestCommitNeverPassesTheCommitMark TestCommitOfTheStart TestCommitOfSomeRanges TestGroupSeesEveryKeyInOrder"},
	{"committed_offsets/3", "CommittedOffsets", "TestCommitOffset TestCommitOfSomeRanges"},
	{"delete_segment/2", "DeleteSegment", "TestDeleteSegment"},
	{"metadata/1", "Metadata", "TestMetadata"},
	{"domain_violations/1", "DomainViolations", "TestMinDomains"},
	{"domain_violations/2", "DomainViolationsIn", "TestMinDomains"},
	{"set_brokers/2", "SetBrokers", "TestSetBrokers"},
	{"set_broker_attributes/2", "SetBrokerAttributes", "TestPlacement TestMinDomains"},
	{"put_cache/3", "PutCache", "TestPutCache TestPutCacheKeepsHotState"},
	{"journal/1", "StartJournal", "TestJournal"},
	{"take_journal/1", "TakeJournal", "TestJournal TestJournalLeavesOutTheUnanswered"},
	{"replay_journal/2", "ReplayJournal", "TestJournal TestReplayNeverTakesAGroupBack TestReplayedDeleteIsOfOneTopic"},
	{"bind_topic_policy/3", "BindTopicPolicy", "TestTopicPolicies TestPolicySetsTheRollSize"},
	{"topic_policy_name/2", "TopicPolicyName", "TestTopicPolicies"},
	{"topics_bound_to/2", "TopicsBoundTo", "TestTopicPolicies"},

	// What the model does not have.
	{"", "AdoptSize", "TestFileOwesARoll"},
	{"", "ApplyCommitted", "TestApplyCommitted TestFetchOvertakenByACommand"},
	{"", "Check", "TestInvariants"},
	{"", "CheckOffsets", "TestPlanRefusesForeignOffsets TestEndOffsets"},
	{"", "Commit", "TestCommitOffset TestCommitCarriesTheGeneration"},
	{"", "CommitMark", "TestCommitMark TestAdoptOffsets"},
	{"", "DeleteTopic", "TestDeleteTopic"},
	{"", "EndOffsets", "TestEndOffsets"},
	{"", "Follow", "TestFollow"},
	{"", "Locate", "TestReadStepsOverAHole TestReadPastAnEmptySegment"},
	{"", "OpenHead", "TestOpenHead"},
	{"", "RecordRoll", "TestRecordRollInOneProposal TestRecordRollRefused TestRecordRollOfAnOldHead"},
	{"", "Plan", "TestPlanFromTheStart TestPlanOfSomeRanges TestPlanOfAMerge TestPlanOfAMergeWithASharedAncestor TestPlanOfAMergeBesideAnOldEntry TestPlanOfDeepMerges TestPlanOfASealedTopic TestConsumerSeesEveryKeyInOrder TestGroupSeesEveryKeyInOrder"},
	{"", "PlanBatch", "TestPlanBatch TestOneRegistrationForMany TestLosingTheRaceToOpen TestPlanFollowsASplit TestRegisterWithoutAnAnswer TestStaleStart TestFastPathDoesNotAllocate"},
	{"", "PlanBatchIn", "TestFastPathDoesNotAllocate TestDeleteTopic"},
	{"", "Refresh", "TestRefreshKeepsOwnWrites TestDropStaleRolls"},
	{"", "Route", "TestRouteAndVersion TestRouteEveryPosition TestSealedTopicIsUnroutable"},
	{"", "Seek", "TestPlanOverWhatHasExpired"},
	{"", "StartPosition", "TestReadConsumeFromTheParentsPosition TestPlanOfAMerge"},
	{"", "Topic", "TestRouteAndVersion TestDeleteTopic"},
	{"", "TryPlanIn", "TestTryPlanIn"},
}

func TestEveryFunctionIsTested(t *testing.T) {
	tests, calls := map[string]bool{}, map[string]bool{}
	names, err := filepath.Glob("*_test.go")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Test") {
				tests[f.Name.Name] = true
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				calls[sel.Sel.Name] = true
			}
			return true
		})
	}
	listed := map[string]bool{"New": true}
	for _, f := range functions {
		listed[f.name] = true
		for _, name := range strings.Fields(f.tests) {
			if !tests[name] {
				t.Errorf("%s: there is no %s", f.name, name)
			}
		}
		if f.tests == "" {
			t.Errorf("%s has no test", f.name)
		}
		if f.name != "New" && !calls[f.name] {
			t.Errorf("no test calls %s", f.name)
		}
	}
	methods := reflect.TypeFor[*Frontend]()
	for i := range methods.NumMethod() {
		if name := methods.Method(i).Name; !listed[name] {
			t.Errorf("%s is not in the table", name)
		}
	}
	for _, f := range functions {
		if _, ok := methods.MethodByName(f.name); !ok && f.name != "New" {
			t.Errorf("there is no %s", f.name)
		}
	}
}
