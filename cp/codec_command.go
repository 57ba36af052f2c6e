package cp

import (
	"maps"
	"slices"

	"github.com/ringfence/ringfence/fence"
)

// A command in a log:
//
//	off size field
//	  0    1 format version, 1
//	  1    1 tag
//	  2      the fields of the command in the order of its struct
//
// Tags are never used again, and what a tag carries never changes: a log that
// was written once is replayed by every later version. A command with other
// fields gets another tag.
const commandVersion = 1

const (
	tagCreateTopic        = 1
	tagSealTopic          = 2
	tagDeleteTopic        = 3
	tagBoundedSplit       = 4 // see lineage.go
	tagBoundedMerge       = 5
	tagRegisterSegment    = 6
	tagSealSegment        = 7
	tagDeleteSegment      = 8
	tagSetSegmentReplicas = 9
	tagCommitOffset       = 10
	tagFenceGroup         = 11
	tagDeleteGroup        = 12
	tagDefinePolicy       = 13
	tagDeletePolicy       = 14
	tagBindTopicPolicy    = 15
	tagBeginMigration     = 16
	tagEndMigration       = 17
	tagExtractTopic       = 18
	tagInsertTopic        = 19
	tagPutUser            = 20
	tagDeleteUser         = 21
	tagSetGrant           = 22
	tagPutToken           = 23
	tagDeleteToken        = 24
	tagSetQuota           = 25
	tagCommitRanges       = 26
	tagSplitRange         = 27
	tagMergeRanges        = 28
)

// MaxCommand bounds an encoded command.
const MaxCommand = 64 << 20

// Encode is a command's bytes for the log. Equal commands have equal bytes.
func Encode(cmd Command) []byte {
	e := encoder{b: make([]byte, 0, 128)}
	e.u8(commandVersion)
	e.u8(cmd.tag())
	cmd.put(&e)
	return e.b
}

// Decode reads what [Encode] writes. It accepts nothing else, and fails with
// [ErrMalformed], [ErrNewerCommand] or [ErrUnknownCommand]. The command shares
// no memory with b.
func Decode(b []byte) (Command, error) {
	if len(b) < 2 || len(b) > MaxCommand || b[0] == 0 {
		return nil, ErrMalformed
	}
	if b[0] > commandVersion {
		return nil, ErrNewerCommand
	}
	get := decoders[b[1]]
	if get == nil {
		return nil, ErrUnknownCommand
	}
	d := decoder{b: b[2:]}
	cmd := get(&d)
	if !d.done() {
		return nil, ErrMalformed
	}
	return cmd, nil
}

var decoders = [256]func(*decoder) Command{
	tagCreateTopic: func(d *decoder) Command {
		return CreateTopic{Name: d.string(), Bits: d.u8(), ID: d.topicID(), At: d.i64()}
	},
	tagSealTopic:    func(d *decoder) Command { return SealTopic{Name: d.string()} },
	tagDeleteTopic:  func(d *decoder) Command { return DeleteTopic{Name: d.string(), ID: d.topicID()} },
	tagBoundedSplit: func(d *decoder) Command { return boundedSplit{SplitRange{Range: d.rangeID()}} },
	tagBoundedMerge: func(d *decoder) Command { return boundedMerge{MergeRanges{A: d.rangeID(), B: d.rangeID()}} },
	tagSplitRange:   func(d *decoder) Command { return SplitRange{Range: d.rangeID()} },
	tagMergeRanges:  func(d *decoder) Command { return MergeRanges{A: d.rangeID(), B: d.rangeID()} },
	tagRegisterSegment: func(d *decoder) Command {
		return RegisterSegment{
			ID: d.segmentID(), Replicas: d.nodes(), Start: d.u64(),
			Salt: d.u64(), Writer: d.u64(), At: d.i64(),
		}
	},
	tagSealSegment: func(d *decoder) Command {
		return SealSegment{ID: d.segmentID(), Length: d.u64(), Bytes: d.u64(), At: d.i64()}
	},
	tagDeleteSegment: func(d *decoder) Command { return DeleteSegment{ID: d.segmentID()} },
	tagSetSegmentReplicas: func(d *decoder) Command {
		return SetSegmentReplicas{ID: d.segmentID(), Replicas: d.nodes()}
	},
	tagCommitOffset: func(d *decoder) Command {
		return CommitOffset{
			Group: d.string(), Topic: d.string(), Generation: d.u64(),
			Positions: d.positions(), Reset: d.bool(),
		}
	},
	tagFenceGroup: func(d *decoder) Command {
		return FenceGroup{Group: d.string(), Topic: d.string(), Generation: d.u64()}
	},
	tagDeleteGroup:     func(d *decoder) Command { return DeleteGroup{Group: d.string(), Topic: d.string()} },
	tagDefinePolicy:    func(d *decoder) Command { return DefinePolicy{Name: d.string(), Policy: d.policy()} },
	tagDeletePolicy:    func(d *decoder) Command { return DeletePolicy{Name: d.string()} },
	tagBindTopicPolicy: func(d *decoder) Command { return BindTopicPolicy{Topic: d.string(), Policy: d.string()} },
	tagBeginMigration:  func(d *decoder) Command { return BeginMigration{Topic: d.string()} },
	tagEndMigration:    func(d *decoder) Command { return EndMigration{Topic: d.string()} },
	tagExtractTopic:    func(d *decoder) Command { return ExtractTopic{Topic: d.string()} },
	tagInsertTopic:     func(d *decoder) Command { return InsertTopic{Export: d.bytes()} },
	tagPutUser:         decodePutUser,
	tagDeleteUser:      func(d *decoder) Command { return DeleteUser{Name: d.string()} },
	tagSetGrant:        decodeSetGrant,
	tagPutToken:        func(d *decoder) Command { return PutToken{User: d.string(), Token: d.token()} },
	tagDeleteToken:     func(d *decoder) Command { return DeleteToken{ID: d.tokenID()} },
	tagSetQuota:        func(d *decoder) Command { return SetQuota{User: d.string(), Quota: d.quota()} },
	tagCommitRanges: func(d *decoder) Command {
		return CommitRanges{Group: d.string(), Topic: d.string(), Generation: d.u64(), Sources: d.position()}
	},
}

func (CreateTopic) tag() byte        { return tagCreateTopic }
func (SealTopic) tag() byte          { return tagSealTopic }
func (DeleteTopic) tag() byte        { return tagDeleteTopic }
func (boundedSplit) tag() byte       { return tagBoundedSplit }
func (boundedMerge) tag() byte       { return tagBoundedMerge }
func (SplitRange) tag() byte         { return tagSplitRange }
func (MergeRanges) tag() byte        { return tagMergeRanges }
func (RegisterSegment) tag() byte    { return tagRegisterSegment }
func (SealSegment) tag() byte        { return tagSealSegment }
func (DeleteSegment) tag() byte      { return tagDeleteSegment }
func (SetSegmentReplicas) tag() byte { return tagSetSegmentReplicas }
func (CommitOffset) tag() byte       { return tagCommitOffset }
func (FenceGroup) tag() byte         { return tagFenceGroup }
func (DeleteGroup) tag() byte        { return tagDeleteGroup }
func (DefinePolicy) tag() byte       { return tagDefinePolicy }
func (DeletePolicy) tag() byte       { return tagDeletePolicy }
func (BindTopicPolicy) tag() byte    { return tagBindTopicPolicy }
func (BeginMigration) tag() byte     { return tagBeginMigration }
func (EndMigration) tag() byte       { return tagEndMigration }
func (ExtractTopic) tag() byte       { return tagExtractTopic }
func (InsertTopic) tag() byte        { return tagInsertTopic }
func (CommitRanges) tag() byte       { return tagCommitRanges }

func (c CreateTopic) put(e *encoder) {
	e.string(c.Name)
	e.u8(c.Bits)
	e.topicID(c.ID)
	e.i64(c.At)
}

func (c SealTopic) put(e *encoder) { e.string(c.Name) }

func (c DeleteTopic) put(e *encoder) {
	e.string(c.Name)
	e.topicID(c.ID)
}

func (c SplitRange) put(e *encoder) { e.rangeID(c.Range) }

func (c MergeRanges) put(e *encoder) {
	e.rangeID(c.A)
	e.rangeID(c.B)
}

func (c RegisterSegment) put(e *encoder) {
	e.segmentID(c.ID)
	e.nodes(c.Replicas)
	e.u64(c.Start)
	e.u64(c.Salt)
	e.u64(c.Writer)
	e.i64(c.At)
}

func (c SealSegment) put(e *encoder) {
	e.segmentID(c.ID)
	e.u64(c.Length)
	e.u64(c.Bytes)
	e.i64(c.At)
}

func (c DeleteSegment) put(e *encoder) { e.segmentID(c.ID) }

func (c SetSegmentReplicas) put(e *encoder) {
	e.segmentID(c.ID)
	e.nodes(c.Replicas)
}

func (c CommitOffset) put(e *encoder) {
	e.string(c.Group)
	e.string(c.Topic)
	e.u64(c.Generation)
	e.u32(uint32(len(c.Positions)))
	for _, id := range slices.SortedFunc(maps.Keys(c.Positions), fence.RangeID.Compare) {
		e.rangeID(id)
		e.position(c.Positions[id])
	}
	e.bool(c.Reset)
}

func (d *decoder) positions() map[fence.RangeID]Position {
	n := d.count(rangeIDLen + 4)
	if n == 0 {
		return nil
	}
	all := make(map[fence.RangeID]Position, n)
	var last fence.RangeID
	for i := range n {
		id := d.rangeID()
		if i > 0 && id.Compare(last) <= 0 {
			d.fail()
			return nil
		}
		all[id], last = d.position(), id
	}
	return all
}

func (c FenceGroup) put(e *encoder) {
	e.string(c.Group)
	e.string(c.Topic)
	e.u64(c.Generation)
}

func (c DeleteGroup) put(e *encoder) {
	e.string(c.Group)
	e.string(c.Topic)
}

func (c DefinePolicy) put(e *encoder) {
	e.string(c.Name)
	e.policy(c.Policy)
}

func (c DeletePolicy) put(e *encoder) { e.string(c.Name) }

func (c BindTopicPolicy) put(e *encoder) {
	e.string(c.Topic)
	e.string(c.Policy)
}

func (c BeginMigration) put(e *encoder) { e.string(c.Topic) }
func (c EndMigration) put(e *encoder)   { e.string(c.Topic) }
func (c ExtractTopic) put(e *encoder)   { e.string(c.Topic) }
func (c InsertTopic) put(e *encoder)    { e.bytes(c.Export) }

func (c CommitRanges) put(e *encoder) {
	e.string(c.Group)
	e.string(c.Topic)
	e.u64(c.Generation)
	e.position(c.Sources)
}
