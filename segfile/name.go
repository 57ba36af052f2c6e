package segfile

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ringfence/ringfence/fence"
)

// Where the files of a tree lie.
//
//	topics/<topic, 32 hex>/<range, 8 hex>-<segment, 8 hex>.seg   a segment
//	topics/.../<range>-<segment>.seg.loss                        losses accepted in it
//	pool/<number, 16 hex>.new                                    zeros, made ahead for a new segment
//	pool/<number, 16 hex>.old                                    a segment that was deleted, to be used again
//	pool/<number, 16 hex>.del                                    to be removed
const (
	topicsDir = "topics"
	poolDir   = "pool"

	segSuffix  = ".seg"
	lossSuffix = ".loss"
)

// TopicsDir is the directory that holds a directory of segment files for each topic.
const TopicsDir = topicsDir

// IsLossRecord says whether a name is that of the record of accepted losses which
// lies beside a segment file.
func IsLossRecord(name string) bool {
	base, ok := strings.CutSuffix(name, lossSuffix)
	if !ok {
		return false
	}
	_, ok = ParseName(base)
	return ok
}

// Name is where the segment's file is.
func Name(id fence.SegmentID) string {
	return fmt.Sprintf("%s/%s/%08x-%08x%s", topicsDir, id.Range.Topic, id.Range.Seq, id.Seq, segSuffix)
}

// Identify says which segment a file holds that begins with b, whatever its name is;
// false when the header does not tell. b is [HeaderSize] bytes or more.
func Identify(b []byte) (Meta, bool) {
	if len(b) < HeaderSize {
		return Meta{}, false
	}
	h, state, _ := readHeader(b)
	return h.Meta, state == headerValid
}

// Dir is the directory of a topic's segment files.
func Dir(t fence.TopicID) string { return topicsDir + "/" + t.String() }

// ParseName reads what [Name] writes, and nothing else.
func ParseName(name string) (id fence.SegmentID, ok bool) {
	parts := strings.Split(name, "/")
	if len(parts) != 3 {
		return id, false
	}
	topic, err := fence.ParseTopicID(parts[1])
	if err != nil {
		return id, false
	}
	r, s, ok := strings.Cut(strings.TrimSuffix(parts[2], segSuffix), "-")
	if !ok {
		return id, false
	}
	rseq, err1 := strconv.ParseUint(r, 16, 32)
	sseq, err2 := strconv.ParseUint(s, 16, 32)
	if err1 != nil || err2 != nil {
		return id, false
	}
	id = fence.SegmentID{Range: fence.RangeID{Topic: topic, Seq: uint32(rseq)}, Seq: uint32(sseq)}
	return id, Name(id) == name
}

// parsePoolName reads a pool file's number and suffix.
func parsePoolName(base string) (n uint64, kind poolKind, ok bool) {
	num, suffix, ok := strings.Cut(base, ".")
	if !ok || len(num) != 16 {
		return 0, 0, false
	}
	n, err := strconv.ParseUint(num, 16, 64)
	if err != nil {
		return 0, 0, false
	}
	for k, s := range poolSuffix {
		if s == suffix && poolName(n, poolKind(k)) == poolDir+"/"+base {
			return n, poolKind(k), true
		}
	}
	return 0, 0, false
}

type poolKind uint8

const (
	poolNew poolKind = iota // zeros up to its size
	poolOld                 // bytes of an earlier life
	poolDel                 // on its way out
)

var poolSuffix = [...]string{poolNew: "new", poolOld: "old", poolDel: "del"}

func poolName(n uint64, k poolKind) string {
	return fmt.Sprintf("%s/%016x.%s", poolDir, n, poolSuffix[k])
}
