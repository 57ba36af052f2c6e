// Package wire is the codec of Ringfence's wire protocol: frames, messages, keys and
// error codes.
//
// [ParseHead] and [Verify] are what foreign bytes pass; [Request] and [Reply] read
// messages, an [Encoder] writes frames. Nothing here does I/O, starts a goroutine or
// keeps memory that it was given.
//
// The rest of this page is the protocol, for those who write a client in any language. They
// also need the schema of the messages (wirefb/wire.fbs) and the layout of record frames
// (package segfile/record: header.go, record.go for key positions, and
// segfile/recfb/batch.fbs for what is inside). testdata/vectors.json has every message as
// bytes and as what they mean; testdata/client.py is a small client in Python.
//
// # Frames
//
// A connection is a stream of bytes, over TCP, TLS or a Unix socket, and each direction of it
// is a sequence of frames. Integers are little-endian. A frame is a head of 16 bytes and a
// message; three of the messages are followed by record frames:
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
// The client speaks first: Hello, with its magic and the range of versions it speaks; this
// page is version 1. The reply says which version is spoken from there on, and whether
// Authenticate has to succeed before anything else is accepted. The mechanism of
// Authenticate is one of those in mechanisms: "password", with user and secret; "token",
// with the secret alone; or "certificate", with neither, for the one shown to TLS. All this
// has to be done within seconds. A client that may not come in is told why, and the
// connection ends.
//
// log names the log behind the server. A cursor means something only there, so a client that
// comes back compares it with what it saw before.
//
// A client that has nothing to say sends a Ping within half of idle_ms. A connection that is
// silent for longer is closed, and so is one on which a frame that has begun does not end, or
// answers are not read, for half a minute.
//
// # Requests and replies
//
// Requests need not wait for one another. Up to max_requests may be unanswered, and no two of
// these have the same id; the server reads no more until one of them is answered. Each
// request but Credit is answered once, with its id. Requests are done and answered in any
// order, so that one that has to wait holds up no other. Only the frames of one producer, and
// the fetches of one consumer, are done in the order in which they were sent. If one request
// needs the effect of another, the client waits for that answer first. A failure with id 0
// belongs to no request: it says why the connection ends.
//
// When a connection ends, the outcome of its unanswered requests is unknown: they may have
// been done, or may still be.
//
// # Lists
//
// What may be long comes in pages. ListTopics, ListPolicies, ListGroups, ListMembers and
// ListUsers return names in the order of their bytes; DescribeTopic, DescribeGroup and Lag
// return ranges in the order of their numbers. more says that there is another page. To ask
// for it, send the last name as after, or the last range's number plus one, or, with
// DescribeTopic, next_range and next_segment. A page may have less than it was asked for.
// What is made or removed between two pages may be on one of them or on none. A topic whose
// id differs from that on the page before was deleted and made anew.
//
// # Producing
//
// OpenProducer returns a handle and an id. The handle is valid on its connection until
// CloseProducer or the end of the connection. The id is the producer's for ever: a client
// that comes back with it and sends the same records again, in the same order, has each of
// them stored once. What an id has sent is known for each topic: on another topic it is
// another producer. An id is open once at a time: opening it again, on any connection, takes
// it from whoever had it.
//
// A Produce carries one record frame, of at most the max_frame of OpenProducerReply, plain or
// compressed. The frame is as a producer writes it: its checksums use salt 0, its producer is
// the id, and it has no flags. Its sequences are above 0 and ascend from frame to frame: on
// one handle, each frame begins above the end of the one before. Only one of the last 32
// frames may be sent again, unchanged; to send more again, the client opens the producer
// again. With unnumbered all sequences are 0. What the frame's head has as base, prev and
// durable does not matter: the server sets them. Frames of one producer are stored in the
// order in which they were sent. The reply comes when every record is durable; repeats says
// how many of them had been stored before, and were not stored again.
//
// A frame may have records of any ranges of the topic. If they all belong to one range, the
// frame is stored as it is; otherwise the server takes it apart. Route says which range a key
// position belongs to, so that a client can gather by range (package segfile/record
// describes positions). A ProduceReply with a range that the client does not know says that
// the ranges have changed. However a client gathers, its sequences ascend from frame to frame
// over all ranges, because two of them may be merged at any time.
//
// Once a frame of a numbered producer has failed, all frames behind it are refused with
// producer_halted: if they were stored, its records would look stored as well. The client
// opens the producer again, with its id, and sends everything from that frame on again. It
// does the same if the outcome is not known, and after write_failed: the file that could not
// be written is closed where its records end, and what is sent again goes to another one.
//
// # Shared memory
//
// A server may have a Unix socket for clients that share memory with it. There the answer to
// Attach comes with a descriptor (SCM_RIGHTS) beside its first byte, of memory whose layout
// package engine/shm describes. From then on the connection's record frames go through that
// memory, and a Produce is refused with unsupported: the client puts a frame into the arena
// and submits it, with the producer's handle and an id like that of a request. If the frame
// is stored, it is answered in the memory; if not, over the socket, like a Produce of that id
// that failed. The client has no more frames unanswered than there are slots, and does not
// touch their bytes until they are answered. Everything else is as on any other connection. A
// connection has such memory at most once, and the memory ends with it: a frame that was
// submitted but not answered by then has an unknown outcome.
//
// # Consuming
//
// OpenConsumer returns a handle, like a producer's. A Page carries whole record frames of one
// range, one after another, compressed if their producer compressed them (s2 is the block
// format of github.com/klauspost/compress/s2). The page's records are those with offsets from
// first up to, but not including, next; the first and the last frame may have others. skips
// are offsets that were moved past because nothing is stored there any more, or never was;
// they may come without any frame. Every frame of a page has records: marks and void frames
// are not sent. With caught_up there was nothing more.
//
// With salt 0 the server has verified the frames. They follow one another without padding,
// their heads' checksums use salt 0, and their flags are 0.
//
// A request with stored allows another kind of page, which costs the server less: frames as
// they lie in a file. Then salt is theirs, not 0, and only their heads were looked at. Each
// frame begins at a multiple of 64 bytes from the start of the page. The next one begins at
// the first such multiple behind it or, as long as the four bytes there are zero, 64 bytes
// further on; there are less than 4,096 such bytes, and none behind the last frame. Some may
// be lent frames, which have version 2 and flags 4 and are otherwise like all others. What
// the server cannot read of the file comes as zeros. So a client verifies every frame; where
// one is damaged or missing, it opens a consumer at its place and asks again without stored,
// and the server says what is wrong there.
//
// On the socket for shared memory, a Fetch with stored may also ask with in_file for a page
// whose frames the client reads itself. Such a page has a salt and file_bytes, and no frames
// behind its message: they are that many bytes of a file, from file_from on, laid out as they
// would have come. A descriptor of the file (SCM_RIGHTS) comes beside the answer's first
// byte. It is read-only, belongs to this page, and is to be closed once the page is read. Its
// file holds one closed segment of one range of the topic, and never anything else: a client
// that keeps the descriptor can read no more than that, and keeps the space of the segment
// in use even when the segment is gone. What the user may do, and a member's generation, are
// checked for each page, so what is revoked holds from the next page on.
//
// The client reads the file and does not map it: mapped memory may change after it was
// verified, and accessing what is not there any more ends the process. If a descriptor does
// not arrive, because the process has too many, or the bytes are not what the page says, the
// client opens a consumer at its place and asks again, without in_file or without stored. The
// server may answer with an ordinary page at any time: for segments that are open, damaged or
// not whole, to clients that have not taken the descriptors before, and always on other
// sockets. A server that does not know the field does so, too: no feature has to be agreed on.
//
// The cursor of a page is the consumer's place behind it. It is opaque: a client stores it and
// hands it back, to OpenConsumer, or to Commit, which makes it the place of a group. Without
// reset, Commit never moves a group back.
//
// Fetch returns one page. While there is nothing to read it waits, for wait_ms at most, and
// then returns a page without frames.
//
// Subscribe makes the server push pages as they come, each with the id of the Subscribe. It
// ends with CloseConsumer, after which it is answered with Done, or when it fails. The bytes
// of the record frames that were pushed, and those between them, count against window until
// Credit gives them back. While any of the window is left, a page may come: of as many bytes
// as are left or, if a single record frame has more, of that frame. A page without frames may
// come to say that the consumer has caught up. A consumer with a subscription accepts no
// Fetch.
//
// # Groups with members
//
// Members of a group share a topic's ranges: each range is read by one of them. A program
// joins under a name, with an instance that it draws at random when it starts. Joining again
// with the same instance changes nothing; another instance takes the place of the one before.
// The Assignment says which ranges are the member's, in which generation of the group; every
// Heartbeat is answered with it, too. The group gets a new generation whenever anything about
// its members or ranges changes. Generations only go up, also across restarts of the server.
//
// A Heartbeat says which generation the member has adopted: the last one in which it has let
// go of all ranges that are not its own there. With wait_ms it is answered when there is a
// newer generation, or when the time is over. A range that is missing in an Assignment goes
// to its next member when the member before has adopted that Assignment, and not earlier,
// unless that takes longer than session_ms. So a member stops reading the range, commits what
// it has processed of it, and sends a Heartbeat with the new generation. A member that is
// silent for session_ms is out: its requests fail with unknown_member, and it may join again.
// LeaveGroup gives up all ranges at once; commit what was processed before.
//
// A member opens consumers with its name, the generation it knows, some or all of its ranges,
// and from 0. They begin where the group is in each range or, if that is further on, where
// the cursor is: with the cursor of an earlier consumer, a member keeps what it has read and
// not committed. When a range was split or merged, such a consumer does not go on to what
// took over its keys: the page behind its end names it in finished. When the group has
// committed that end, and that of the other half of a merge, the ranges behind it are
// assigned.
//
// A member's Commit has its name and the generation that it knows. The cursor, of one of its
// consumers, becomes the group's place in the ranges that it names, which must be the
// member's. stale_generation says that one of them is not: it is another member's now, who
// goes on where the group is. While a group has members, a Commit without a member fails with
// group_in_use, and so does DeleteGroup.
//
// # Users
//
// What clients may do is granted to users: operations on topics, on groups, and on the
// cluster, which stands for everything else. Every Produce and every page needs the grant at
// that moment. Without it, it fails with permission_denied, or with not_authenticated if the
// user, or the token that was used to log in, is gone. To consume as a group takes "consume"
// on the topic and on the group.
//
// Requests 80 to 89 need "users" on the cluster, with which a user can grant himself
// anything. "all" on the cluster makes an administrator, who may do everything. The secret of
// a token is in the answer to CreateToken and never told again. ChangePassword is for whoever
// is logged in: it takes the old password, which is checked, and counted, like a login.
//
// A Produce over the quota of its user fails with rate_limited, which says when to try again.
// While anything is left of the quota, a frame is accepted as a whole; what it takes beyond
// that is made up for by waiting longer. Logins are limited as well: each address has some
// per minute, and after wrong passwords a user is locked out at the address they came from.
// Both fail with rate_limited.
//
// # Errors
//
// A failure has a code, what happened in words for people, and with retry_after_ms the
// earliest time to try again. Bit 15 of a code is set if the same request may succeed later.
// A client judges a code that it does not know by that bit.
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
// Within a version, tables only get new fields at their end, and keys, codes and features only
// get numbers that were never used. A reader passes over fields that it does not know, and
// takes missing ones as 0, empty or false, and a missing table as an empty one. So either
// side may be the older one. What an older one must not overlook gets a bit of features,
// which is used only if both sides set it, or a new version. Head, Hello and HelloReply stay
// as they are in every version.
package wire
