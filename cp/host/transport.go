package host

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
	pb "github.com/lni/dragonboat/v4/raftpb"
)

// alone is the transport of a node without peers: it opens no port and reaches
// nobody. It also hands messages in, see [alone.campaign].
type alone struct {
	deliver atomic.Pointer[raftio.MessageHandler]
}

var errAlone = errors.New("cp/host: this node has no peers")

func (t *alone) Create(_ config.NodeHostConfig, h raftio.MessageHandler, _ raftio.ChunkHandler) raftio.ITransport {
	t.deliver.Store(&h)
	return t
}

// Validate accepts any name as an address: a node is addressed by its name.
func (t *alone) Validate(address string) bool { return address != "" }

func (t *alone) Name() string { return "none" }
func (t *alone) Start() error { return nil }
func (t *alone) Close() error { return nil }

func (t *alone) GetConnection(context.Context, string) (raftio.IConnection, error) {
	return nil, errAlone
}

func (t *alone) GetSnapshotConnection(context.Context, string) (raftio.ISnapshotConnection, error) {
	return nil, errAlone
}

// campaign makes a replica stand for election at once, by the message with which a
// leader hands over. A replica without peers would otherwise sit out its election
// timeout at every start.
func (t *alone) campaign(shard, replica uint64) {
	h := t.deliver.Load()
	if h == nil {
		return
	}
	(*h)(pb.MessageBatch{
		DeploymentId: deployment,
		BinVer:       raftio.TransportBinVersion,
		Requests:     []pb.Message{{Type: pb.TimeoutNow, ShardID: shard, To: replica, From: replica}},
	})
}
