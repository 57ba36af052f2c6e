// Package wire is the codec of Ringfence's wire protocol: frames, messages, keys and
// error codes.
//
// [ParseHead] and [Verify] are what foreign bytes pass; [Request] and [Reply] read
// messages, an [Encoder] writes frames. Nothing here does I/O, starts a goroutine or
// keeps memory that it was given.
//
// The rest of this page is the protocol, for those who write a client in any language.
// Besides it they need the schema of the messages (wirefb/wire.fbs) and the layout of
// record frames (package segfile/record: header.go, record.go for key positions, and
// segfile/recfb/batch.fbs for what is in them). testdata/vectors.json has every message as bytes and as what they
// mean, testdata/client.py is a small client in Python.
//
// # Frames
//
// A connection is a stream of bytes, over TCP, TLS or a Unix socket, and each
// direction of it a sequence of frames. Integers are little-endian. A frame is a head
// of 16 bytes, a message, and with three of the messages record frames:
//
//	off size field
//	  0    4 length   bytes behind the head: message and record frames
//	  4    2 key      what is asked, the same in request and reply
//	  6    2 flags    0 request; 1 reply; 3 failed; 5 pushed
//	  8    4 id       chosen by the client, not 0; the same in request and reply
//	 12    4 message  bytes of the message; what is left of length is record frames
//
// A message is a flatbuffer without size prefix or file identifier. Key and flags say
// which table of the schema is its root; a failed one's is Error, whatever the key:
//
//	key               request         reply               record frames
//	 1 Hello          Hello           HelloReply
//	 2 Authenticate   Authenticate    AuthenticateReply
//	 3 Ping           Ping            Done
//	16 CreateTopic    CreateTopic     Done
//	17 DeleteTopic    Topic           Done
//	18 ListTopics     ListTopics      ListTopicsReply
//	19 DescribeTopic  DescribeTopic   DescribeTopicReply
//	20 SplitRange     SplitRange      SplitRangeReply
//	21 MergeRanges    MergeRanges     MergeRangesReply
//	22 RollTopic      Topic           RollTopicReply
//	24 SetPolicy      SetPolicy       Done
//	25 DeletePolicy   DeletePolicy    Done
//	26 ListPolicies   ListPolicies    ListPoliciesReply
//	27 BindPolicy     BindPolicy      Done
//	32 OpenProducer   OpenProducer    OpenProducerReply
//	33 Produce        Produce         ProduceReply        one, in the request
//	34 CloseProducer  CloseProducer   Done
//	35 Attach         Attach          AttachReply
//	36 Route          Topic           RouteReply
//	48 OpenConsumer   OpenConsumer    OpenConsumerReply
//	49 Fetch          Fetch           Page                any number, in the reply
//	50 CloseConsumer  CloseConsumer   Done
//	51 Lag            Lag             LagReply
//	52 Subscribe      Subscribe       Done                any number, in each Page that is pushed
//	53 Credit         Credit          none
//	56 Commit         Commit          Done
//	64 JoinGroup      JoinGroup       Assignment
//	65 Heartbeat      Heartbeat       Assignment
//	66 LeaveGroup     LeaveGroup      Done
//	67 ListGroups     ListGroups      ListGroupsReply
//	68 DescribeGroup  DescribeGroup   DescribeGroupReply
//	69 DeleteGroup    Group           Done
//	70 ListMembers    ListMembers     ListMembersReply
//	80 PutUser        PutUser         Done
//	81 DeleteUser     DeleteUser      Done
//	82 ListUsers      ListUsers       ListUsersReply
//	83 Grant          UserGrant       Done
//	84 Revoke         UserGrant       Done
//	85 ListGrants     ListGrants      ListGrantsReply
//	86 CreateToken    CreateToken     CreateTokenReply
//	87 DeleteToken    DeleteToken     Done
//	88 ListTokens     ListTokens      ListTokensReply
//	89 SetQuota       SetQuota        Done
//	90 ChangePassword ChangePassword  Done
//
// # What is accepted
//
// Both sides refuse a message that breaks one of these rules, before they look at what
// it says:
//
//   - Every offset leads into the message, as flatbuffers' own verifiers ask. Alignment
//     is not asked for, but what Ringfence sends is aligned from the start of the message.
//   - A string is valid UTF-8, ends in a zero byte that its length does not count, and
//     has at most 4 KiB; a cursor at most 512 KiB. A secret has at most 16 KiB.
//   - Nothing but vtables is used twice: what is read by following every offset is no
//     longer than the message. Builders do not share parts unless they are told to.
//   - A message has at most 1 MiB. Bytes behind the message are there only where the
//     table above says so.
//   - length is at most 64 KiB until the client is let in, and then at most the
//     max_frame of HelloReply.
//
// A head that is refused ends the connection, for nobody knows where the next frame
// starts: the server answers a failed frame with key 0 and id 0 and closes. A message
// that is refused, or a key that the server does not have, is answered like any request
// that fails, and the connection goes on; until the client is let in it ends.
//
// # The start of a connection
//
// The client speaks first: Hello, with its magic and the range of versions it speaks;
// this page is version 1. The reply says which version is spoken from there on, and
// whether Authenticate has to succeed before anything else is taken: then its mechanism
// is "password", with user and secret, "token", with the secret alone, or "certificate",
// with neither, for the one shown to TLS, if mechanisms has it. All this has to be done within seconds. A client that may not come
// in is told why and cut off.
//
// log names the log behind the server. A cursor means something there alone, so a client
// that comes back compares it with what it saw before.
//
// A client that has nothing to say sends a Ping in half of idle_ms; a connection that is
// silent for longer is closed, and so is one on which a frame that began does not end or
// answers are not read for half a minute.
//
// # Requests and replies
//
// Requests need not wait for one another. Up to max_requests may be unanswered, and the
// server reads no more until one of them is answered; no two of these have the same id. Each but Credit is answered once, with its id. They are done
// and answered in any order, so that what has to wait holds nothing else up; in the order
// they were sent in are the frames of one producer and the fetches of one consumer. What
// a request builds upon is to be waited for. A failure with id 0 belongs to no request: it
// says why the connection ends.
//
// When a connection ends, what became of its unanswered requests is unknown: they may
// have been done, or yet be.
//
// # Lists
//
// What may be long comes in pages: ListTopics, ListPolicies, ListGroups, ListMembers and
// ListUsers answer names in the order of their bytes, DescribeTopic, DescribeGroup and Lag
// ranges in that of their numbers. A page says with more that there is another one. It is
// asked for with the last name as after, from the last range's number plus one on, or, of
// DescribeTopic, from next_range and next_segment on. A page may have less than it was
// asked for. What comes and goes between two pages may be on one of them or on none; a
// topic whose id is another one than on the page before was made anew.
//
// # Producing
//
// OpenProducer answers a handle, which is good on its connection and until CloseProducer
// or the connection's end, and an id, which is the producer's for ever: who comes back
// with the same id and sends the same records in the same order again has each stored
// once. What an id has sent is known by topic: on another one it
// is another producer. It is open once at a time: opened again, on whichever connection,
// it is taken from the one that had it.
//
// A Produce carries one record frame of at most the max_frame of OpenProducerReply,
// plain or compressed. It is as a producer writes it: with the checksums of salt 0, the id
// as its producer, no flags, and sequences that start above 0 and ascend from frame to frame:
// on one handle each frame begins above the end of the one before, but that one of the last
// 32 may come again as it was; who sends more again opens the producer again; with unnumbered they are all 0. What its head has as base, prev and
// durable does not matter: the server sets them anew. Frames of one producer are stored in
// the order they were sent in. The reply comes when every record is durable. repeats says how many
// of them were before: they were not stored again.
//
// A frame may have records of any ranges of the topic. One whose records all belong to
// one range is stored as it is; another is taken apart. Route says which range a key
// position belongs to, so that a client can gather by range; positions are in package
// segfile/record. A ProduceReply with a range that the client does not know says that
// the ranges have changed. Whatever a client goes by, its sequences ascend from frame to
// frame, over all ranges: two of them may be merged at any time.
//
// Once a frame of a numbered producer failed, all behind it are refused with
// producer_halted, or they would make its records look stored. The client opens the
// producer again, with its id, and sends everything from that frame on again. It does
// the same where the outcome is not known, and after write_failed: the file that could
// not be written is closed where its records end, and what comes again goes to another.
//
// # Shared memory
//
// A server may have a Unix socket for clients that share memory with it. There Attach is
// answered with a descriptor (SCM_RIGHTS) beside the reply's first byte, of memory whose
// layout package engine/shm tells. From then on the connection's record frames go through
// that memory, and a Produce is refused with unsupported: the client puts a frame in the
// arena and submits it, with the producer's handle and an id as a request has one. A frame
// that is stored is answered in the memory. One that is not is answered over the socket, as
// a Produce of that id that failed. The client has no more frames unanswered than there are
// slots, and leaves their bytes alone until they are answered. All else stays as it is on
// any connection, which has memory at most once, and whose end is that of the memory: a
// frame that was submitted and not answered by then has an unknown outcome.
//
// # Consuming
//
// OpenConsumer answers a handle, like a producer's. A Page carries whole record frames of
// one range, one behind another, compressed if their producer compressed them: s2 is the
// block format of github.com/klauspost/compress/s2. Of their records those with offsets
// from first up to, not including, next are the page's; first and last frame may have
// others. skips are offsets that were moved past because nothing is stored there any
// more, or ever was, and may come without any frame. Every frame of a page has records:
// a mark or a void frame is not sent. With caught_up there was nothing more.
//
// With salt 0 the server has verified the frames, they follow one another without
// padding, and their head's checksum is that of salt 0 and their flags are 0. A request with stored allows
// another kind of page, which costs the server less: frames as they lie in a file. Then
// salt is theirs, not 0, and nobody has looked at more than their heads. Each begins a
// multiple of 64 bytes behind the begin of the page. Behind a frame the next one begins
// at the next such multiple, or, as long as the four bytes there are zero, 64 bytes on;
// there are less than 4,096 such bytes, and none behind the last frame. Some may be lent
// frames, which are of version 2 and flags 4 and else like all others. What the server
// cannot read of the file comes as zeros. So a client verifies every frame, and where one
// is damaged or missing it opens a consumer at its place and asks again without stored: the
// server then says what is wrong there.
//
// On the socket for shared memory a Fetch may ask with in_file, besides stored, for a page
// whose frames the client reads itself. Such a page has a salt and file_bytes, and no frame
// behind its message: they are that many bytes of a file, from file_from on, laid out as
// they would have come. A descriptor of the file (SCM_RIGHTS) comes beside the answer's first
// byte. It is of this page, to be closed once that is read, for reading alone, and of a file
// that holds one closed segment of one range of the topic and never anything else: who keeps
// it keeps no more than that, and has the space of a segment that is gone stay taken. What
// the user may do, and a member's generation, are asked for each page, so what is taken back
// holds for the next one. The client reads the file and does not map it: mapped memory may
// change after it was verified, and what is not there any more ends the process. Where a
// descriptor does not come through, because the process has too many, or the bytes are not
// what the page says, it opens a consumer at its place and asks again without in_file, or
// without stored. The server answers with an ordinary page whenever it likes: for segments
// that are open, damaged, or not whole, to clients that have not taken those before, and on
// other sockets always. So does one that does not know the field: no feature is agreed on.
//
// The cursor of a page is the consumer's place behind it. It is opaque: a client stores it
// and hands it back, to OpenConsumer or to Commit, which makes it the place of a group.
// That never moves a group back without reset.
//
// Fetch answers one page. While there is nothing to read, it waits for wait_ms and then
// answers a page without frames.
//
// Subscribe has the server push pages as they come, each with the id of the Subscribe,
// until CloseConsumer, after which Done answers it, or until it fails. The bytes of the
// record frames pushed, with those between them, count against window until Credit gives them back. While any of it
// is left a page may come, of as many bytes as are left or, where one record frame alone
// has more, of that frame. A page without frames may come to say that the consumer has
// caught up. A consumer with a subscription takes no Fetch.
//
// # Groups with members
//
// Members of a group share a topic's ranges: each range has one member that reads it. A
// program joins under a name, with an instance that it draws at random when it starts.
// Joining again with the same instance changes nothing; another instance takes the
// place of the one before. The Assignment says which ranges are the member's, in which
// generation of the group, and it is told anew by every Heartbeat. The group gets a new
// generation whenever anything about its members or ranges changes, and generations
// only rise, also over restarts of the server.
//
// A Heartbeat says which generation the member has adopted: the last one in which it has
// let go of all ranges that it does not have there. With wait_ms it is answered when
// there is another generation than that, or the time is over. A range that an
// Assignment does not have any more goes to its next member as soon as the member has
// adopted that Assignment, and no sooner, but for members that take longer than
// session_ms: so a member stops reading the range, commits what it has processed of it,
// and sends a Heartbeat with the new generation. A member of which nothing is heard for
// session_ms is out; its requests fail with unknown_member, and it may join again.
// LeaveGroup gives up all ranges at once: what was processed is committed before it.
//
// A member opens consumers with its name, the generation it knows and some or all of its
// ranges, and from 0. They begin where the group is in each range, or where the cursor
// is, if that is further: a cursor of an earlier consumer of the member keeps what it has
// read and not committed. Such a consumer does not go on to what takes over a range's
// keys when it was split or merged: the page behind its end names it in finished, and
// when the group has committed its end, and that of the other half for a merge, the
// ranges behind it are assigned.
//
// A member's Commit has its name and the generation that it knows. The cursor, of one of
// its consumers, is made the group's place in the ranges that it names, which must be
// the member's. stale_generation says that one is not: it is another's now, which goes on
// where the group is. While a group has members, Commit without a member fails
// with group_in_use, and so does DeleteGroup.
//
// # Users
//
// What clients may do is granted to users: operations on topics, on groups, and on the
// cluster, where everything else is. Producing and consuming, each Produce and each page,
// takes what is granted at that moment; it fails with permission_denied, or with
// not_authenticated where the user, or the token that was logged in with, is gone. To
// consume as a group takes "consume" on the topic and on the group.
//
// Requests 80 to 89 take "users" on the cluster, with which a user can grant himself
// anything. "all" on the cluster is an administrator's, who may do everything. The secret
// of a token is told in the answer to CreateToken and never again. ChangePassword is of
// whoever is logged in: it takes his old password, which is as good as another login, and
// counts like one.
//
// A Produce over the quota of its user fails with rate_limited, which says when to try
// again: a frame is taken whole while anything is left of the quota, and what it takes
// beyond that is waited for. Logins are limited as well: each
// address has some in a minute, and after wrong passwords a user is locked out where they
// came from. Both fail with rate_limited.
//
// # Errors
//
// A failure says code, what happened in words for people, and with retry_after_ms when to
// try again at the earliest. Bit 15 of a code is set if the same request may succeed
// later. A client takes a code that it does not know by that bit.
//
//	     1 malformed             the frame or message breaks a rule of this page
//	     2 unknown_key           the server does not have this request
//	     3 unsupported_version   no version is spoken by both sides
//	     4 frame_too_large       frame or message is longer than it may be
//	     5 not_authenticated     Authenticate comes first
//	     6 invalid_credentials   user or secret is wrong
//	     7 permission_denied     the user may not do this
//	     8 internal              none of the other codes; the server's log knows more
//	     9 unsupported           this server does not do that
//	    10 quota_too_small       no pause helps against the user's quota; this version does not say that
//	    16 no_such_topic
//	    17 topic_exists
//	    18 invalid_name          a topic cannot be called this
//	    19 no_such_range
//	    20 invalid_argument      the detail names it
//	    21 record_too_large      the record frame is larger than the producer may send
//	    22 damaged               what is stored there cannot be read; the detail names file and byte
//	    23 storage_failed        the disk failed: it may have been done, or not
//	    24 producer_halted       a frame before this one failed: open the producer again
//	    25 corrupt_frame         the record frame is none, or is not this producer's
//	    26 no_such_handle        the connection has no such producer or consumer
//	    27 no_such_policy
//	    28 no_such_group         it has neither committed anything nor had members
//	    29 policy_in_use         topics are bound to it
//	    30 group_in_use          it has members
//	    32 invalid_cursor        it is no cursor
//	    33 foreign_cursor        it belongs to another topic
//	    34 cursor_past_end       it lies behind everything that is stored
//	    35 cursor_of_other       other records are stored where it was made
//	    36 stale_generation      the group has moved on without this member
//	    37 unknown_member        the group does not have this member
//	    38 range_sealed          it was split or merged, and others have its keys
//	    39 not_buddies           the ranges are not the two halves of one
//	    40 cannot_split          the range has one key position
//	    41 invalid_bits          of a topic's key positions: 1 to 32
//	    42 invalid_policy        its name, or a limit of it
//	    43 invalid_group         a group, or a member of one, cannot be called this
//	    44 not_a_source          the place names a range that the topic does not read from there
//	    45 limit_reached         there are as many of these as there can be
//	    46 mismatch              log and metadata of the server do not belong together
//	    48 no_such_user
//	    49 user_exists
//	    50 no_such_grant
//	    51 no_such_token
//	    52 invalid_user          a user cannot be called this
//	    53 invalid_password      it is too short or too long
//	    54 invalid_grant         nothing of the kind can be granted
//	    55 invalid_token         its name, or it would have expired already
//	    56 last_administrator    there would be users, and none who can change them
//	0x8001 out_of_space          nothing was stored; the disk is full
//	0x8002 overloaded            too much is waiting
//	0x8003 outcome_unknown       it may have been done, or yet be
//	0x8004 unavailable           not now
//	0x8005 shutting_down         the server is about to stop
//	0x8006 rate_limited          the client has used up what it may do for now
//	0x8007 too_many_connections
//	0x8008 write_failed          writing records failed: they may or may not be stored
//
// # Compatibility
//
// Within a version a table only ever gets fields at its end, and keys, codes and
// features get numbers that were never used. Who reads passes over fields that it does
// not know, and takes those that are missing as 0, empty or false; a missing table as one
// with nothing in it. So either side may be the older one. Whatever an older one must not
// overlook is a bit of features, used only if both sides set it, or a new version. Head,
// Hello and HelloReply stay as they are in every version.
package wire
