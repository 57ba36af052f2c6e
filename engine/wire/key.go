package wire

import "fmt"

// Key says what a request asks, and so how its message and the reply's are read.
type Key uint16

// The keys. A number is never given to another one.
const (
	KeyHello         Key = 1
	KeyAuthenticate  Key = 2
	KeyPing          Key = 3
	KeyCreateTopic   Key = 16
	KeyDeleteTopic   Key = 17
	KeyListTopics    Key = 18
	KeyDescribeTopic Key = 19
	KeySplitRange    Key = 20
	KeyMergeRanges   Key = 21
	KeyRollTopic     Key = 22
	KeySetPolicy     Key = 24
	KeyDeletePolicy  Key = 25
	KeyListPolicies  Key = 26
	KeyBindPolicy    Key = 27
	KeyOpenProducer  Key = 32
	KeyProduce       Key = 33
	KeyCloseProducer Key = 34
	KeyAttach        Key = 35
	KeyRoute         Key = 36
	KeyOpenConsumer  Key = 48
	KeyFetch         Key = 49
	KeyCloseConsumer Key = 50
	KeyLag           Key = 51
	KeySubscribe     Key = 52
	KeyCredit        Key = 53
	KeyCommit        Key = 56
	KeyJoinGroup     Key = 64
	KeyHeartbeat     Key = 65
	KeyLeaveGroup    Key = 66
	KeyListGroups    Key = 67
	KeyDescribeGroup Key = 68
	KeyDeleteGroup   Key = 69
	KeyListMembers   Key = 70
	KeyPutUser       Key = 80
	KeyDeleteUser    Key = 81
	KeyListUsers     Key = 82
	KeyGrant         Key = 83
	KeyRevoke        Key = 84
	KeyListGrants    Key = 85
	KeyCreateToken   Key = 86
	KeyDeleteToken   Key = 87
	KeyListTokens    Key = 88
	KeySetQuota      Key = 89
	// KeyChangePassword is of every user; those from KeyPutUser to KeySetQuota are of operators.
	KeyChangePassword Key = 90
)

// exchange is a request and what comes back.
type exchange struct {
	name    string
	request *table
	reply   *table // nil: none
	push    *table // nil: none
}

// exchanges by key; those without a name are not in use.
var exchanges = [...]exchange{
	KeyHello:          {"Hello", &tableHello, &tableHelloReply, nil},
	KeyAuthenticate:   {"Authenticate", &tableAuthenticate, &tableAuthenticateReply, nil},
	KeyPing:           {"Ping", &tablePing, &tableDone, nil},
	KeyCreateTopic:    {"CreateTopic", &tableCreateTopic, &tableDone, nil},
	KeyDeleteTopic:    {"DeleteTopic", &tableTopic, &tableDone, nil},
	KeyListTopics:     {"ListTopics", &tableListTopics, &tableListTopicsReply, nil},
	KeyDescribeTopic:  {"DescribeTopic", &tableDescribeTopic, &tableDescribeTopicReply, nil},
	KeySplitRange:     {"SplitRange", &tableSplitRange, &tableSplitRangeReply, nil},
	KeyMergeRanges:    {"MergeRanges", &tableMergeRanges, &tableMergeRangesReply, nil},
	KeyRollTopic:      {"RollTopic", &tableTopic, &tableRollTopicReply, nil},
	KeySetPolicy:      {"SetPolicy", &tableSetPolicy, &tableDone, nil},
	KeyDeletePolicy:   {"DeletePolicy", &tableDeletePolicy, &tableDone, nil},
	KeyListPolicies:   {"ListPolicies", &tableListPolicies, &tableListPoliciesReply, nil},
	KeyBindPolicy:     {"BindPolicy", &tableBindPolicy, &tableDone, nil},
	KeyOpenProducer:   {"OpenProducer", &tableOpenProducer, &tableOpenProducerReply, nil},
	KeyProduce:        {"Produce", &tableProduce, &tableProduceReply, nil},
	KeyCloseProducer:  {"CloseProducer", &tableCloseProducer, &tableDone, nil},
	KeyAttach:         {"Attach", &tableAttach, &tableAttachReply, nil},
	KeyRoute:          {"Route", &tableTopic, &tableRouteReply, nil},
	KeyOpenConsumer:   {"OpenConsumer", &tableOpenConsumer, &tableOpenConsumerReply, nil},
	KeyFetch:          {"Fetch", &tableFetch, &tablePage, nil},
	KeyCloseConsumer:  {"CloseConsumer", &tableCloseConsumer, &tableDone, nil},
	KeyLag:            {"Lag", &tableLag, &tableLagReply, nil},
	KeySubscribe:      {"Subscribe", &tableSubscribe, &tableDone, &tablePage},
	KeyCredit:         {"Credit", &tableCredit, nil, nil},
	KeyCommit:         {"Commit", &tableCommit, &tableDone, nil},
	KeyJoinGroup:      {"JoinGroup", &tableJoinGroup, &tableAssignment, nil},
	KeyHeartbeat:      {"Heartbeat", &tableHeartbeat, &tableAssignment, nil},
	KeyLeaveGroup:     {"LeaveGroup", &tableLeaveGroup, &tableDone, nil},
	KeyListGroups:     {"ListGroups", &tableListGroups, &tableListGroupsReply, nil},
	KeyDescribeGroup:  {"DescribeGroup", &tableDescribeGroup, &tableDescribeGroupReply, nil},
	KeyDeleteGroup:    {"DeleteGroup", &tableGroup, &tableDone, nil},
	KeyListMembers:    {"ListMembers", &tableListMembers, &tableListMembersReply, nil},
	KeyPutUser:        {"PutUser", &tablePutUser, &tableDone, nil},
	KeyDeleteUser:     {"DeleteUser", &tableDeleteUser, &tableDone, nil},
	KeyListUsers:      {"ListUsers", &tableListUsers, &tableListUsersReply, nil},
	KeyGrant:          {"Grant", &tableUserGrant, &tableDone, nil},
	KeyRevoke:         {"Revoke", &tableUserGrant, &tableDone, nil},
	KeyListGrants:     {"ListGrants", &tableListGrants, &tableListGrantsReply, nil},
	KeyCreateToken:    {"CreateToken", &tableCreateToken, &tableCreateTokenReply, nil},
	KeyDeleteToken:    {"DeleteToken", &tableDeleteToken, &tableDone, nil},
	KeyListTokens:     {"ListTokens", &tableListTokens, &tableListTokensReply, nil},
	KeySetQuota:       {"SetQuota", &tableSetQuota, &tableDone, nil},
	KeyChangePassword: {"ChangePassword", &tableChangePassword, &tableDone, nil},
}

// exchangeOf is nil for a key that is not in use.
func exchangeOf(k Key) *exchange {
	if int(k) >= len(exchanges) || exchanges[k].name == "" {
		return nil
	}
	return &exchanges[k]
}

// table is the schema of a message of the exchange, nil where there is none.
func (x *exchange) table(flags uint16) *table {
	switch flags {
	case 0:
		return x.request
	case FlagReply:
		return x.reply
	case FlagReply | FlagPush:
		return x.push
	case FlagReply | FlagFailed:
		return &tableError
	}
	return nil
}

// Keys are those that this version has.
func Keys() (all []Key) {
	for k := range exchanges {
		if exchanges[k].name != "" {
			all = append(all, Key(k))
		}
	}
	return all
}

// Known says whether this version has the key.
func (k Key) Known() bool { return exchangeOf(k) != nil }

func (k Key) String() string {
	if x := exchangeOf(k); x != nil {
		return x.name
	}
	return fmt.Sprintf("key %d", uint16(k))
}
