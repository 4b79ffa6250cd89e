package redisstore

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// The keys of a call, the markers and the clocks go by what the server is, and not by
// the type of the client. On a server in cluster mode the keys of a call share a cluster
// slot, and each slot has a marker of its own; on any other one marker and one clock
// serve all ids. Two clients that took the same server for different things would go by
// different markers.
//
// A ClusterClient that asks its nodes who serves what is one of a Cluster. Every other
// client is taken for one of a server that is not in cluster mode: such a server in
// truth refuses the first call that names two slots, with CROSSSLOT, and nothing of
// that call was done. It takes no question of its own, and no right to ask one. (Where
// the only id that was ever asked for shares a slot with the marker of the other form,
// one in 16,384, nothing is refused and nothing noticed until the next id.) A
// ClusterClient that is told who serves what, by a ClusterSlots of the caller's, is one
// of a Cluster if it is told of more than one master; the one of NewFailoverClusterClient
// is told of one.

// crossed reports whether the server has refused calls since they name more than one
// cluster slot, which makes it known that keys go by slot. The calls are to be made anew.
func (e *executor) crossed(calls []*call) bool {
	for _, c := range calls {
		if !c.bySlot && isCrossSlot(c.cmd.Err()) {
			e.codec.goBySlot()
			return true
		}
	}
	return false
}

func isCrossSlot(err error) bool { return err != nil && redis.HasErrorPrefix(err, "CROSSSLOT") }

// learn finds out whether keys go by cluster slot, where that is to be asked of the
// client, and does so once.
func (e *executor) learn(ctx context.Context) error {
	if !e.unsure.Load() {
		return nil
	}
	cluster, ok := e.client.UniversalClient.(*redis.ClusterClient)
	if !ok {
		return nil
	}
	n, err := aside(ctx, &e.client.left, func(ctx context.Context) (int64, error) {
		var masters atomic.Int64
		err := cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error {
			masters.Add(1)
			return nil
		})
		return masters.Load(), err
	}, nil)
	if err != nil {
		return err
	}
	if n > 1 {
		e.codec.goBySlot()
	}
	e.unsure.Store(false)
	return nil
}
