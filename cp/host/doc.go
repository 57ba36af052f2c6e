// Package host keeps a node's share of the metadata: one replica of every vnode,
// each a [cp.State] behind a Raft group.
//
// A [Host] is one node's directory of metadata, opened. [Host.Propose] changes a
// topic's vnode by a command and returns the reply; [Host.ProposeAll] does so for
// many. [Host.Read] sees every command that was answered before it was called,
// [Host.ReadLocal] what this replica has applied; [Host.Views] copies all vnodes, to
// seed a frontend. All are safe for concurrent use.
//
// A command that was answered is durable: it survives kill -9 and a power cut, as
// far as the device keeps what it said was flushed. A command is proposed once and
// never repeated here, so it takes effect at most once. When its answer does not
// come in time the error is [ErrUnknownOutcome], because it may still be applied
// later; cp's commands are made to be repeated after a look at the state.
//
// Storage that fails stops the metadata, not the process: the host answers
// [ErrFailed] from then on and [Host.Failed] tells. A full disk does not stop it; see
// [ErrNoSpace].
//
// A directory holds:
//
//	identity.json  who the replicas are, see identity.go
//	lock           held while a host is open
//	raft/          journal-0 and journal-1, see journal.go, and snapshots
//
// The three belong together. A host resumes the replicas that it finds, forms new ones only
// in a directory that never had any, and refuses a directory from which something was
// removed, or to which something was restored from another time.
//
// A node without peers opens no network port.
package host
