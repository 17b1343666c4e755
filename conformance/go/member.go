// The part of franz-go in tests/support/live_group.py: a member of a group, with the consumer protocol (KIP-848) or the classic one.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// event is one line of output. tests/support/group_history.py describes them.
type event struct {
	Member     string  `json:"member"`
	What       string  `json:"what"`
	Partitions [][]any `json:"partitions,omitempty"`
	Topic      string  `json:"topic,omitempty"`
	Partition  int32   `json:"partition"`
	Offsets    []int64 `json:"offsets,omitempty"`
	Offset     int64   `json:"offset"`
	Error      string  `json:"error,omitempty"`
}

type place struct {
	topic     string
	partition int32
}

// say prints an event with a single write: several members share one file.
func say(each event) {
	line, err := json.Marshal(each)
	must(err)
	_, err = os.Stdout.Write(append(line, '\n'))
	must(err)
}

// groupMember reads and commits until it gets SIGTERM. The arguments after the group: "member", the member's name,
// "consumer" or "classic", and a topic or, if it begins with ^, a pattern.
func groupMember(group string) {
	name, protocol, subscription := os.Args[4], os.Args[5], os.Args[6]
	var lock sync.Mutex
	pending := map[place]*kgo.Record{} // the last records that were read, and are not committed yet
	told := func(what string) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
			lock.Lock()
			defer lock.Unlock()
			found := [][]any{}
			for topic, partitions := range changed {
				for _, partition := range partitions {
					delete(pending, place{topic, partition})
					found = append(found, []any{topic, partition})
				}
			}
			if len(found) > 0 {
				say(event{Member: name, What: what, Partitions: found})
			}
		}
	}
	options := []kgo.Opt{kgo.ConsumerGroup(group), kgo.ConsumeTopics(subscription),
		kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(), kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.OnPartitionsAssigned(told("assigned")), kgo.OnPartitionsRevoked(told("revoked")),
		kgo.OnPartitionsLost(told("lost"))}
	if protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer())
	} else {
		options = append(options, kgo.HeartbeatInterval(200*time.Millisecond))
	}
	if strings.HasPrefix(subscription, "^") {
		options = append(options, kgo.ConsumeRegex())
	}
	member := client(options...)
	var stopping atomic.Bool
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() { <-signals; stopping.Store(true) }()
	for !stopping.Load() {
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		fetches := member.PollFetches(short)
		cancel()
		fetches.EachError(func(_ string, _ int32, err error) {
			if !errors.Is(err, context.DeadlineExceeded) {
				say(event{Member: name, What: "error", Error: err.Error()})
			}
		})
		fetches.EachPartition(func(each kgo.FetchTopicPartition) {
			if len(each.Records) == 0 {
				return
			}
			offsets := []int64{}
			for _, record := range each.Records {
				offsets = append(offsets, record.Offset)
			}
			say(event{Member: name, What: "read", Topic: each.Topic, Partition: each.Partition, Offsets: offsets})
			lock.Lock()
			defer lock.Unlock()
			pending[place{each.Topic, each.Partition}] = each.Records[len(each.Records)-1]
		})
		lock.Lock()
		last := slices.Collect(maps.Values(pending))
		lock.Unlock()
		if len(last) > 0 {
			if err := member.CommitRecords(ctx, last...); err != nil {
				say(event{Member: name, What: "refused", Error: err.Error()}) // it is repeated after the next poll
			} else {
				for _, record := range last {
					say(event{Member: name, What: "committed", Topic: record.Topic, Partition: record.Partition, Offset: record.Offset + 1})
				}
				lock.Lock()
				clear(pending)
				lock.Unlock()
			}
		}
		member.AllowRebalance()
	}
	member.CloseAllowingRebalance()
	say(event{Member: name, What: "ended"})
}
