// The part of franz-go in benchmarks/soak.py.
package main

import (
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const soakPartitions = 4

// soak writes transactions, some of which it aborts, and reads them in a group whose second member joins and leaves. It
// runs until it is killed. The file named by the fourth argument contains the target number of records per second. Each
// line on stdout is the number of records read so far.
func soak(name string) {
	where := topic(fmt.Sprint(os.Getpid()), soakPartitions)
	writer := client(kgo.TransactionalID(name))
	var read atomic.Int64
	go soakMember(where, &read, 0)
	go func() {
		for {
			time.Sleep(20 * time.Second)
			soakMember(where, &read, 5*time.Second)
		}
	}()
	for {
		began := time.Now()
		text, err := os.ReadFile(os.Args[4])
		must(err)
		rate, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		must(err)
		count, end, word := max(1, int(rate/2)), kgo.TryCommit, "committed"
		if rand.Intn(5) == 0 {
			end, word = kgo.TryAbort, "aborted"
		}
		records := make([]*kgo.Record, count)
		for i := range records {
			records[i] = record(where, int32(rand.Intn(soakPartitions)), word+strings.Repeat("x", rand.Intn(400)))
		}
		must(writer.BeginTransaction())
		must(writer.ProduceSync(ctx, records...).FirstErr())
		must(writer.EndTransaction(ctx, end))
		fmt.Println(read.Load())
		time.Sleep(time.Duration(float64(count)/rate*float64(time.Second)) - time.Since(began))
	}
}

// soakMember reads in the group for the given time; 0 means forever.
func soakMember(where string, read *atomic.Int64, life time.Duration) {
	member := client(kgo.ConsumerGroup(where), kgo.ConsumeTopics(where), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer member.Close()
	if life > 0 {
		time.AfterFunc(life, member.Close)
	}
	for {
		fetches := member.PollFetches(ctx)
		if fetches.IsClientClosed() {
			return
		}
		fetches.EachRecord(func(each *kgo.Record) {
			if !strings.HasPrefix(string(each.Value), "committed") {
				panic("a read_committed member has seen an aborted record")
			}
			read.Add(1)
		})
	}
}
