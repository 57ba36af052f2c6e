package wire

import (
	flatbuffers "github.com/google/flatbuffers/go"

	"github.com/ringfence/ringfence/engine/wire/wirefb"
)

// Message is what a frame carries: a pointer to any of the types below, or an *[Error].
type Message interface {
	Pack(*flatbuffers.Builder) flatbuffers.UOffsetT
}

// The messages and the tables in them, as wirefb/wire.fbs describes them.
type (
	Done               = wirefb.DoneT
	Hello              = wirefb.HelloT
	HelloReply         = wirefb.HelloReplyT
	Authenticate       = wirefb.AuthenticateT
	AuthenticateReply  = wirefb.AuthenticateReplyT
	Ping               = wirefb.PingT
	CreateTopic        = wirefb.CreateTopicT
	Topic              = wirefb.TopicT
	ListTopics         = wirefb.ListTopicsT
	TopicInfo          = wirefb.TopicInfoT
	ListTopicsReply    = wirefb.ListTopicsReplyT
	SegmentInfo        = wirefb.SegmentInfoT
	RangeInfo          = wirefb.RangeInfoT
	DescribeTopic      = wirefb.DescribeTopicT
	DescribeTopicReply = wirefb.DescribeTopicReplyT
	SplitRange         = wirefb.SplitRangeT
	SplitRangeReply    = wirefb.SplitRangeReplyT
	MergeRanges        = wirefb.MergeRangesT
	MergeRangesReply   = wirefb.MergeRangesReplyT
	RollTopicReply     = wirefb.RollTopicReplyT
	Bound              = wirefb.BoundT
	Policy             = wirefb.PolicyT
	SetPolicy          = wirefb.SetPolicyT
	DeletePolicy       = wirefb.DeletePolicyT
	ListPolicies       = wirefb.ListPoliciesT
	ListPoliciesReply  = wirefb.ListPoliciesReplyT
	BindPolicy         = wirefb.BindPolicyT
	OpenProducer       = wirefb.OpenProducerT
	OpenProducerReply  = wirefb.OpenProducerReplyT
	Produce            = wirefb.ProduceT
	ProduceReply       = wirefb.ProduceReplyT
	CloseProducer      = wirefb.CloseProducerT
	RouteReply         = wirefb.RouteReplyT
	Attach             = wirefb.AttachT
	AttachReply        = wirefb.AttachReplyT
	OpenConsumer       = wirefb.OpenConsumerT
	OpenConsumerReply  = wirefb.OpenConsumerReplyT
	Fetch              = wirefb.FetchT
	Skip               = wirefb.SkipT
	Page               = wirefb.PageT
	Subscribe          = wirefb.SubscribeT
	Credit             = wirefb.CreditT
	CloseConsumer      = wirefb.CloseConsumerT
	Lag                = wirefb.LagT
	LagReply           = wirefb.LagReplyT
	Commit             = wirefb.CommitT
	JoinGroup          = wirefb.JoinGroupT
	Heartbeat          = wirefb.HeartbeatT
	Assignment         = wirefb.AssignmentT
	LeaveGroup         = wirefb.LeaveGroupT
	ListGroups         = wirefb.ListGroupsT
	ListGroupsReply    = wirefb.ListGroupsReplyT
	ListMembers        = wirefb.ListMembersT
	ListMembersReply   = wirefb.ListMembersReplyT
	Group              = wirefb.GroupT
	DescribeGroup      = wirefb.DescribeGroupT
	GroupRange         = wirefb.GroupRangeT
	DescribeGroupReply = wirefb.DescribeGroupReplyT
	Grant              = wirefb.GrantT
	Quota              = wirefb.QuotaT
	PutUser            = wirefb.PutUserT
	ChangePassword     = wirefb.ChangePasswordT
	DeleteUser         = wirefb.DeleteUserT
	ListUsers          = wirefb.ListUsersT
	UserInfo           = wirefb.UserInfoT
	ListUsersReply     = wirefb.ListUsersReplyT
	UserGrant          = wirefb.UserGrantT
	ListGrants         = wirefb.ListGrantsT
	ListGrantsReply    = wirefb.ListGrantsReplyT
	CreateToken        = wirefb.CreateTokenT
	TokenInfo          = wirefb.TokenInfoT
	CreateTokenReply   = wirefb.CreateTokenReplyT
	DeleteToken        = wirefb.DeleteTokenT
	ListTokens         = wirefb.ListTokensT
	ListTokensReply    = wirefb.ListTokensReplyT
	SetQuota           = wirefb.SetQuotaT
)

// The tables of wirefb/wire.fbs for the verifier, fields in their order. A test holds
// them against the schema.
var (
	tableError              = table{"Error", []field{byte2, text, byte4}, unpackError}
	tableDone               = table{"Done", nil, by((*wirefb.Done).UnPack)}
	tableHello              = table{"Hello", []field{byte4, byte2, byte2, byte8, text}, by((*wirefb.Hello).UnPack)}
	tableHelloReply         = table{"HelloReply", []field{byte2, byte8, text, text, byte1, texts, byte4, byte4, byte4}, by((*wirefb.HelloReply).UnPack)}
	tableAuthenticate       = table{"Authenticate", []field{text, text, secret}, by((*wirefb.Authenticate).UnPack)}
	tableAuthenticateReply  = table{"AuthenticateReply", []field{text}, by((*wirefb.AuthenticateReply).UnPack)}
	tablePing               = table{"Ping", nil, by((*wirefb.Ping).UnPack)}
	tableCreateTopic        = table{"CreateTopic", []field{text, byte1, text}, by((*wirefb.CreateTopic).UnPack)}
	tableTopic              = table{"Topic", []field{text}, by((*wirefb.Topic).UnPack)}
	tableListTopics         = table{"ListTopics", []field{text, text, byte4}, by((*wirefb.ListTopics).UnPack)}
	tableTopicInfo          = table{"TopicInfo", []field{text, text, byte1, text, byte1, byte8, byte4, byte4, byte8, byte8, byte4, byte4}, by((*wirefb.TopicInfo).UnPack)}
	tableListTopicsReply    = table{"ListTopicsReply", []field{many(&tableTopicInfo), byte1}, by((*wirefb.ListTopicsReply).UnPack)}
	tableSegmentInfo        = table{"SegmentInfo", []field{byte4, byte1, byte8, byte8, byte8, byte8, byte8, text, byte1, text, byte8, byte8}, by((*wirefb.SegmentInfo).UnPack)}
	tableRangeInfo          = table{"RangeInfo", []field{byte4, byte8, byte8, byte1, numbers, byte8, many(&tableSegmentInfo)}, by((*wirefb.RangeInfo).UnPack)}
	tableDescribeTopic      = table{"DescribeTopic", []field{text, byte4, byte4}, by((*wirefb.DescribeTopic).UnPack)}
	tableDescribeTopicReply = table{"DescribeTopicReply", []field{one(&tableTopicInfo), many(&tableRangeInfo), byte1, byte4, byte4}, by((*wirefb.DescribeTopicReply).UnPack)}
	tableSplitRange         = table{"SplitRange", []field{text, byte4}, by((*wirefb.SplitRange).UnPack)}
	tableSplitRangeReply    = table{"SplitRangeReply", []field{byte4, byte4}, by((*wirefb.SplitRangeReply).UnPack)}
	tableMergeRanges        = table{"MergeRanges", []field{text, byte4, byte4}, by((*wirefb.MergeRanges).UnPack)}
	tableMergeRangesReply   = table{"MergeRangesReply", []field{byte4}, by((*wirefb.MergeRangesReply).UnPack)}
	tableRollTopicReply     = table{"RollTopicReply", []field{byte4}, by((*wirefb.RollTopicReply).UnPack)}
	tableBound              = table{"Bound", []field{byte1, byte8}, by((*wirefb.Bound).UnPack)}
	tablePolicy             = table{"Policy", []field{text, one(&tableBound), one(&tableBound), one(&tableBound), one(&tableBound)}, by((*wirefb.Policy).UnPack)}
	tableSetPolicy          = table{"SetPolicy", []field{one(&tablePolicy)}, by((*wirefb.SetPolicy).UnPack)}
	tableDeletePolicy       = table{"DeletePolicy", []field{text, byte1}, by((*wirefb.DeletePolicy).UnPack)}
	tableListPolicies       = table{"ListPolicies", []field{text, byte4}, by((*wirefb.ListPolicies).UnPack)}
	tableListPoliciesReply  = table{"ListPoliciesReply", []field{many(&tablePolicy), byte1}, by((*wirefb.ListPoliciesReply).UnPack)}
	tableBindPolicy         = table{"BindPolicy", []field{text, text}, by((*wirefb.BindPolicy).UnPack)}
	tableOpenProducer       = table{"OpenProducer", []field{text, byte8, byte1}, by((*wirefb.OpenProducer).UnPack)}
	tableOpenProducerReply  = table{"OpenProducerReply", []field{byte4, byte8, byte4}, by((*wirefb.OpenProducerReply).UnPack)}
	tableProduce            = table{"Produce", []field{byte4}, by((*wirefb.Produce).UnPack)}
	tableProduceReply       = table{"ProduceReply", []field{byte4, byte8, byte8, byte4}, by((*wirefb.ProduceReply).UnPack)}
	tableCloseProducer      = table{"CloseProducer", []field{byte4}, by((*wirefb.CloseProducer).UnPack)}
	tableRouteReply         = table{"RouteReply", []field{text, numbers, numbers}, by((*wirefb.RouteReply).UnPack)}
	tableAttach             = table{"Attach", []field{byte8}, by((*wirefb.Attach).UnPack)}
	tableAttachReply        = table{"AttachReply", []field{byte2, byte4, byte8, byte8}, by((*wirefb.AttachReply).UnPack)}
	tableOpenConsumer       = table{"OpenConsumer", []field{text, text, byte1, cursor, byte8, text, byte8, numbers}, by((*wirefb.OpenConsumer).UnPack)}
	tableOpenConsumerReply  = table{"OpenConsumerReply", []field{byte4, cursor}, by((*wirefb.OpenConsumerReply).UnPack)}
	tableFetch              = table{"Fetch", []field{byte4, byte4, byte4, byte1, byte1}, by((*wirefb.Fetch).UnPack)}
	tableSkip               = table{"Skip", []field{byte4, byte8, byte8, byte1}, by((*wirefb.Skip).UnPack)}
	tablePage               = table{"Page", []field{byte4, byte4, byte8, byte8, byte4, many(&tableSkip), byte1, cursor, numbers, byte8, byte8, byte8}, by((*wirefb.Page).UnPack)}
	tableSubscribe          = table{"Subscribe", []field{byte4, byte4, byte4, byte1}, by((*wirefb.Subscribe).UnPack)}
	tableCredit             = table{"Credit", []field{byte4, byte4}, by((*wirefb.Credit).UnPack)}
	tableCloseConsumer      = table{"CloseConsumer", []field{byte4}, by((*wirefb.CloseConsumer).UnPack)}
	tableLag                = table{"Lag", []field{byte4, cursor, byte1, byte4}, by((*wirefb.Lag).UnPack)}
	tableLagReply           = table{"LagReply", []field{byte8, many(&tableGroupRange), byte1}, by((*wirefb.LagReply).UnPack)}
	tableCommit             = table{"Commit", []field{text, text, cursor, byte1, text, byte8}, by((*wirefb.Commit).UnPack)}
	tableJoinGroup          = table{"JoinGroup", []field{text, text, text, byte8}, by((*wirefb.JoinGroup).UnPack)}
	tableHeartbeat          = table{"Heartbeat", []field{text, text, text, byte8, byte4}, by((*wirefb.Heartbeat).UnPack)}
	tableAssignment         = table{"Assignment", []field{byte8, byte4, numbers}, by((*wirefb.Assignment).UnPack)}
	tableLeaveGroup         = table{"LeaveGroup", []field{text, text, text, byte8}, by((*wirefb.LeaveGroup).UnPack)}
	tableListGroups         = table{"ListGroups", []field{text, text, byte4}, by((*wirefb.ListGroups).UnPack)}
	tableListGroupsReply    = table{"ListGroupsReply", []field{texts, byte1}, by((*wirefb.ListGroupsReply).UnPack)}
	tableListMembers        = table{"ListMembers", []field{text, text, text, byte4}, by((*wirefb.ListMembers).UnPack)}
	tableListMembersReply   = table{"ListMembersReply", []field{byte8, texts, byte1}, by((*wirefb.ListMembersReply).UnPack)}
	tableGroup              = table{"Group", []field{text, text}, by((*wirefb.Group).UnPack)}
	tableDescribeGroup      = table{"DescribeGroup", []field{text, text, byte4}, by((*wirefb.DescribeGroup).UnPack)}
	tableGroupRange         = table{"GroupRange", []field{byte4, byte8, byte8, byte8, byte8, text}, by((*wirefb.GroupRange).UnPack)}
	tableDescribeGroupReply = table{"DescribeGroupReply", []field{text, many(&tableGroupRange), byte1, byte8, cursor, text}, by((*wirefb.DescribeGroupReply).UnPack)}
	tableGrant              = table{"Grant", []field{byte1, byte1, text}, by((*wirefb.Grant).UnPack)}
	tableQuota              = table{"Quota", []field{byte8, byte8}, by((*wirefb.Quota).UnPack)}
	tablePutUser            = table{"PutUser", []field{text, secret, byte1, many(&tableGrant)}, by((*wirefb.PutUser).UnPack)}
	tableChangePassword     = table{"ChangePassword", []field{secret, secret}, by((*wirefb.ChangePassword).UnPack)}
	tableDeleteUser         = table{"DeleteUser", []field{text}, by((*wirefb.DeleteUser).UnPack)}
	tableListUsers          = table{"ListUsers", []field{text, byte4}, by((*wirefb.ListUsers).UnPack)}
	tableUserInfo           = table{"UserInfo", []field{text, byte1, byte8, byte8, byte4, byte4, one(&tableQuota), byte4, byte4, byte8, text}, by((*wirefb.UserInfo).UnPack)}
	tableListUsersReply     = table{"ListUsersReply", []field{many(&tableUserInfo), byte1}, by((*wirefb.ListUsersReply).UnPack)}
	tableUserGrant          = table{"UserGrant", []field{text, one(&tableGrant)}, by((*wirefb.UserGrant).UnPack)}
	tableListGrants         = table{"ListGrants", []field{text}, by((*wirefb.ListGrants).UnPack)}
	tableListGrantsReply    = table{"ListGrantsReply", []field{many(&tableGrant)}, by((*wirefb.ListGrantsReply).UnPack)}
	tableCreateToken        = table{"CreateToken", []field{text, text, byte8}, by((*wirefb.CreateToken).UnPack)}
	tableTokenInfo          = table{"TokenInfo", []field{text, text, text, byte8, byte8}, by((*wirefb.TokenInfo).UnPack)}
	tableCreateTokenReply   = table{"CreateTokenReply", []field{one(&tableTokenInfo), text}, by((*wirefb.CreateTokenReply).UnPack)}
	tableDeleteToken        = table{"DeleteToken", []field{text}, by((*wirefb.DeleteToken).UnPack)}
	tableListTokens         = table{"ListTokens", []field{text}, by((*wirefb.ListTokens).UnPack)}
	tableListTokensReply    = table{"ListTokensReply", []field{many(&tableTokenInfo)}, by((*wirefb.ListTokensReply).UnPack)}
	tableSetQuota           = table{"SetQuota", []field{text, one(&tableQuota)}, by((*wirefb.SetQuota).UnPack)}
)
