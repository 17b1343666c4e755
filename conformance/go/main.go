// The checks of conformance/test_foreign_clients.py for franz-go. Prints a line PASS NAME or FAIL NAME: REASON for each.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	bootstrap string
	prefix    string
	ctx       = context.Background()
)

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner())}, options...)...)
	must(err)
	return made
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func equal(got, want any) {
	if fmt.Sprint(got) != fmt.Sprint(want) {
		panic(fmt.Sprintf("got %v, want %v", got, want))
	}
}

// topic creates a topic for this run.
func topic(name string, partitions int32) string {
	made := prefix + "-" + name
	admin := kadm.NewClient(client())
	defer admin.Close()
	_, err := admin.CreateTopic(ctx, partitions, 1, nil, made)
	must(err)
	return made
}

func record(topic string, partition int32, value string) *kgo.Record {
	return &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)}
}

// values reads a partition from its start to its end at the isolation level.
func values(topic string, isolation kgo.IsolationLevel) []string {
	admin := kadm.NewClient(client())
	defer admin.Close()
	list := admin.ListEndOffsets
	if isolation == kgo.ReadCommitted() {
		list = admin.ListCommittedOffsets
	}
	ends, err := list(ctx, topic)
	must(err)
	end, _ := ends.Lookup(topic, 0)
	reader := client(kgo.FetchIsolationLevel(isolation), kgo.KeepControlRecords(), kgo.ConsumePartitions(
		map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(0)}}))
	defer reader.Close()
	found := []string{}
	for position := int64(0); position < end.Offset; {
		deadline, cancel := context.WithTimeout(ctx, 20*time.Second)
		fetches := reader.PollFetches(deadline)
		cancel()
		must(fetches.Err())
		fetches.EachRecord(func(each *kgo.Record) {
			position = each.Offset + 1
			if !each.Attrs.IsControl() {
				found = append(found, string(each.Value))
			}
		})
		if isolation == kgo.ReadCommitted() && len(found) > 0 && found[len(found)-1] == "last" {
			break
		}
	}
	return found
}

func codec(compression kgo.CompressionCodec) func(string) {
	return func(name string) {
		where := topic(name, 1)
		writer := client(kgo.ProducerBatchCompression(compression))
		for i := 0; i < 200; i++ {
			each := record(where, 0, strings.Repeat(fmt.Sprint(i, " "), 40))
			each.Key = []byte(fmt.Sprint("key", i))
			each.Headers = []kgo.RecordHeader{{Key: "h", Value: []byte{byte(i)}}, {Key: "null", Value: nil}}
			writer.Produce(ctx, each, nil)
		}
		must(writer.Flush(ctx))
		writer.Close()
		reader := client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{where: {0: kgo.NewOffset().AtStart()}}))
		defer reader.Close()
		read := 0
		for read < 200 {
			fetches := reader.PollFetches(ctx)
			must(fetches.Err())
			fetches.EachRecord(func(each *kgo.Record) {
				equal(string(each.Key), fmt.Sprint("key", read))
				equal(string(each.Value), strings.Repeat(fmt.Sprint(read, " "), 40))
				equal(each.Headers[0].Value, []byte{byte(read)})
				equal(each.Headers[1].Value == nil, true)
				equal(each.Offset, read)
				read++
			})
		}
	}
}

func transactions(name string) {
	where := topic(name, 1)
	writer := client(kgo.TransactionalID(prefix + name))
	defer writer.Close()
	for i, how := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
		must(writer.BeginTransaction())
		for j := 0; j < 3; j++ {
			must(writer.ProduceSync(ctx, record(where, 0, fmt.Sprint(i, "-", j))).FirstErr())
		}
		must(writer.EndTransaction(ctx, how))
	}
	must(writer.BeginTransaction())
	must(writer.ProduceSync(ctx, record(where, 0, "open")).FirstErr())
	committed := []string{"0-0", "0-1", "0-2", "2-0", "2-1", "2-2"}
	equal(values(where, kgo.ReadCommitted()), committed)
	equal(values(where, kgo.ReadUncommitted()),
		[]string{"0-0", "0-1", "0-2", "1-0", "1-1", "1-2", "2-0", "2-1", "2-2", "open"})
	must(writer.EndTransaction(ctx, kgo.TryAbort))
}

func fencing(name string) {
	where := topic(name, 1)
	first := client(kgo.TransactionalID(prefix + name))
	defer first.Close()
	must(first.BeginTransaction())
	must(first.ProduceSync(ctx, record(where, 0, "zombie's")).FirstErr())
	second := client(kgo.TransactionalID(prefix + name))
	defer second.Close()
	must(second.BeginTransaction())
	must(second.ProduceSync(ctx, record(where, 0, "last")).FirstErr())
	must(second.EndTransaction(ctx, kgo.TryCommit))
	err := first.ProduceSync(ctx, record(where, 0, "late")).FirstErr()
	if err == nil {
		err = first.EndTransaction(ctx, kgo.TryCommit)
	}
	if !errors.Is(err, kerr.InvalidProducerEpoch) && !errors.Is(err, kerr.ProducerFenced) {
		panic(fmt.Sprint("the zombie got ", err))
	}
	eventually(func() bool { return len(values(where, kgo.ReadCommitted())) > 0 }) // markers follow the response
	equal(values(where, kgo.ReadCommitted()), []string{"last"})
}

// readProcessWrite copies a topic in transactions that carry the group's offsets.
func readProcessWrite(name string) {
	from, to := topic(name+"-in", 1), topic(name+"-out", 1)
	writer := client()
	for i := 0; i < 100; i++ {
		writer.Produce(ctx, record(from, 0, fmt.Sprint(i)), nil)
	}
	must(writer.Flush(ctx))
	writer.Close()
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(bootstrap), kgo.TransactionalID(prefix+name),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ConsumerGroup(prefix+name), kgo.ConsumeTopics(from),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(), kgo.FetchMaxPartitionBytes(300))
	must(err)
	copied := 0
	for copied < 100 {
		fetches := session.PollFetches(ctx)
		must(fetches.Err())
		must(session.Begin())
		fetches.EachRecord(func(each *kgo.Record) {
			session.Produce(ctx, record(to, 0, string(each.Value)), nil)
		})
		committed, err := session.End(ctx, kgo.TryCommit)
		must(err)
		equal(committed, true)
		copied += fetches.NumRecords()
	}
	session.Close()
	admin := kadm.NewClient(client())
	defer admin.Close()
	offsets, err := admin.FetchOffsets(ctx, prefix+name)
	must(err)
	offset, _ := offsets.Lookup(from, 0)
	equal(offset.At, 100)
	equal(len(values(to, kgo.ReadCommitted())), 100)
}

func group(name string, balancer kgo.GroupBalancer) {
	where := topic(name, 4)
	member := func() *kgo.Client {
		return client(kgo.ConsumerGroup(prefix+name), kgo.ConsumeTopics(where), kgo.Balancers(balancer),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.HeartbeatInterval(200*time.Millisecond))
	}
	writer := client()
	write := func(values ...string) {
		for i, value := range values {
			must(writer.ProduceSync(ctx, record(where, int32(i%4), value)).FirstErr())
		}
	}
	defer writer.Close()
	write("a", "b", "c", "d")
	first, second := member(), member()
	seen := map[string]int{}
	poll := func(reader *kgo.Client) {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		fetches := reader.PollFetches(short)
		fetches.EachRecord(func(each *kgo.Record) { seen[string(each.Value)]++ })
		must(reader.CommitUncommittedOffsets(ctx))
	}
	admin := kadm.NewClient(client())
	defer admin.Close()
	shared := func() bool {
		described, err := admin.DescribeGroups(ctx, prefix+name)
		must(err)
		members := described[prefix+name].Members
		if described[prefix+name].State != "Stable" || len(members) != 2 {
			return false
		}
		for _, each := range members {
			assigned, _ := each.Assigned.AsConsumer()
			if len(assigned.Topics) != 1 || len(assigned.Topics[0].Partitions) != 2 {
				return false
			}
		}
		return true
	}
	for deadline := time.Now().Add(30 * time.Second); !shared(); {
		if time.Now().After(deadline) {
			panic("the group never shared the partitions")
		}
		poll(first)
		poll(second)
	}
	write("e", "f", "g", "h")
	for deadline := time.Now().Add(20 * time.Second); len(seen) < 8 && time.Now().Before(deadline); {
		poll(first)
		poll(second)
	}
	equal(len(seen), 8)
	first.Close()
	second.Close()
	offsets, err := admin.FetchOffsets(ctx, prefix+name)
	must(err)
	total := int64(0)
	offsets.Each(func(each kadm.OffsetResponse) { total += each.At })
	equal(total, 8)
}

// eventually waits for a change: each of several brokers may learn of it later.
func eventually(holds func() bool) {
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			panic("the change is not visible after 30 s")
		}
	}
}

func administration(name string) {
	where := topic(name, 2)
	admin := kadm.NewClient(client())
	defer admin.Close()
	writer := client()
	defer writer.Close()
	for i := 0; i < 10; i++ {
		must(writer.ProduceSync(ctx, record(where, 0, fmt.Sprint(i))).FirstErr())
	}
	grown, err := admin.UpdatePartitions(ctx, 5, where)
	must(err)
	must(grown.Error())
	eventually(func() bool {
		listed, err := admin.ListTopics(ctx, where)
		must(err)
		return len(listed[where].Partitions) == 5
	})
	value := "1234567"
	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}}, where)
	must(err)
	_, err = altered.On(where, nil)
	must(err)
	eventually(func() bool { // another broker than the one that changed it may answer
		configs, err := admin.DescribeTopicConfigs(ctx, where)
		must(err)
		for _, each := range configs[0].Configs {
			if each.Key == "retention.ms" {
				return *each.Value == value
			}
		}
		return false
	})
	offsets := kadm.Offsets{}
	offsets.AddOffset(where, 0, 4, -1)
	deleted, err := admin.DeleteRecords(ctx, offsets)
	must(err)
	must(deleted.Error())
	starts, err := admin.ListStartOffsets(ctx, where)
	must(err)
	start, _ := starts.Lookup(where, 0)
	equal(start.Offset, 4)
	_, err = admin.DeleteTopics(ctx, where)
	must(err)
}

func groupAdministration(name string) {
	where := topic(name, 1)
	admin := kadm.NewClient(client())
	defer admin.Close()
	offsets := kadm.Offsets{}
	offsets.AddOffset(where, 0, 7, -1)
	eventually(func() bool {
		committed, err := admin.CommitOffsets(ctx, prefix+name, offsets)
		must(err)
		unknown := committed.Error()
		if errors.Is(unknown, kerr.UnknownTopicOrPartition) || errors.Is(unknown, kerr.UnknownTopicID) {
			return false
		}
		must(committed.Error())
		return true
	})
	listed, err := admin.ListGroups(ctx)
	must(err)
	equal(listed[prefix+name].Group, prefix+name)
	gone, err := admin.DeleteOffsets(ctx, prefix+name, kadm.TopicsSet{where: {0: {}}})
	must(err)
	must(gone.Error())
	left, err := admin.FetchOffsets(ctx, prefix+name)
	must(err)
	_, there := left.Lookup(where, 0)
	equal(there, false)
	must(func() error { _, err := admin.CommitOffsets(ctx, prefix+name, offsets); return err }())
	deleted, err := admin.DeleteGroups(ctx, prefix+name)
	must(err)
	must(deleted.Error())
	listed, err = admin.ListGroups(ctx)
	must(err)
	_, there = listed[prefix+name]
	equal(there, false)
}

func offsetsByTime(name string) {
	where := topic(name, 1)
	writer := client()
	defer writer.Close()
	base := time.Now().Add(-time.Hour)
	for i := 0; i < 10; i++ {
		each := record(where, 0, fmt.Sprint(i))
		each.Timestamp = base.Add(time.Duration(i) * time.Second)
		must(writer.ProduceSync(ctx, each).FirstErr())
	}
	admin := kadm.NewClient(client())
	defer admin.Close()
	found, err := admin.ListOffsetsAfterMilli(ctx, base.Add(6*time.Second).UnixMilli(), where)
	must(err)
	offset, _ := found.Lookup(where, 0)
	equal(offset.Offset, 6)
}

func largeAndEmpty(name string) {
	where := topic(name, 1)
	writer := client()
	defer writer.Close()
	must(writer.ProduceSync(ctx, record(where, 0, strings.Repeat("x", 900_000))).FirstErr())
	must(writer.ProduceSync(ctx, &kgo.Record{Topic: where}).FirstErr())
	must(writer.ProduceSync(ctx, record(where, 0, "")).FirstErr())
	got := values(where, kgo.ReadUncommitted())
	equal(len(got), 3)
	equal(len(got[0]), 900_000)
	large := client(kgo.ProducerBatchMaxBytes(2_000_000), kgo.ProducerBatchCompression(kgo.NoCompression()))
	defer large.Close()
	err := large.ProduceSync(ctx, record(where, 0, strings.Repeat("x", 1_500_000))).FirstErr()
	equal(errors.Is(err, kerr.MessageTooLarge), true)
}

func describe(name string) {
	where := topic(name, 1)
	writer := client(kgo.TransactionalID(prefix + name))
	defer writer.Close()
	must(writer.BeginTransaction())
	must(writer.ProduceSync(ctx, record(where, 0, "x")).FirstErr())
	admin := kadm.NewClient(client())
	defer admin.Close()
	described, err := admin.DescribeTransactions(ctx, prefix+name)
	must(err)
	equal(described[prefix+name].State, "Ongoing")
	producers, err := admin.DescribeProducers(ctx, kadm.TopicsSet{where: {0: {}}})
	must(err)
	equal(len(producers.SortedProducers()), 1)
	must(writer.EndTransaction(ctx, kgo.TryCommit))
	listed, err := admin.ListTransactions(ctx, nil, nil)
	must(err)
	equal(listed[prefix+name].TxnID, prefix+name)
}

// show prints the committed records of a topic's partitions: a line of JSON each, bytes in base64.
func show(where string) {
	admin := kadm.NewClient(client())
	defer admin.Close()
	ends, err := admin.ListCommittedOffsets(ctx, where)
	must(err)
	out := json.NewEncoder(os.Stdout)
	ends.Each(func(end kadm.ListedOffset) {
		reader := client(kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.ConsumePartitions(
			map[string]map[int32]kgo.Offset{where: {end.Partition: kgo.NewOffset().At(0)}}))
		defer reader.Close()
		for position := int64(0); position < end.Offset; {
			fetches := reader.PollFetches(ctx)
			must(fetches.Err())
			fetches.EachRecord(func(each *kgo.Record) {
				position = each.Offset + 1
				if !each.Attrs.IsControl() {
					must(out.Encode(map[string]any{"partition": each.Partition, "offset": each.Offset, "key": each.Key,
						"value": each.Value, "headers": each.Headers, "timestamp": each.Timestamp.UnixMilli()}))
				}
			})
		}
	})
}

// fill writes with every codec an aborted transaction, then a committed one of ten records, into partition 0.
func fill(where string) {
	for name, compression := range map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()} {
		writer := client(kgo.TransactionalID(where+name), kgo.ProducerBatchCompression(compression))
		for _, how := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
			must(writer.BeginTransaction())
			for i := 0; i < 10; i++ {
				each := record(where, 0, strings.Repeat(fmt.Sprint(how, name, i, " "), 100))
				each.Key = []byte(fmt.Sprint(name, i))
				each.Headers = []kgo.RecordHeader{{Key: "codec", Value: []byte(name)}, {Key: "null", Value: nil}, {Key: "", Value: []byte{}}}
				each.Timestamp = time.UnixMilli(int64(1000 + i))
				writer.Produce(ctx, each, nil)
			}
			must(writer.Flush(ctx))
			must(writer.EndTransaction(ctx, how))
		}
		writer.Close()
	}
}

func main() {
	bootstrap, prefix = os.Args[1], os.Args[2]
	if len(os.Args) > 3 {
		map[string]func(string){"show": show, "fill": fill, "soak": soak, "login": logIn, "member": groupMember}[os.Args[3]](prefix)
		return
	}
	checks := map[string]func(string){
		"administration":       administration,
		"codec-gzip":           codec(kgo.GzipCompression()),
		"codec-lz4":            codec(kgo.Lz4Compression()),
		"codec-none":           codec(kgo.NoCompression()),
		"codec-snappy":         codec(kgo.SnappyCompression()),
		"codec-zstd":           codec(kgo.ZstdCompression()),
		"describe":             describe,
		"fencing":              fencing,
		"group-administration": groupAdministration,
		"group-cooperative":    func(name string) { group(name, kgo.CooperativeStickyBalancer()) },
		"group-eager":          func(name string) { group(name, kgo.RangeBalancer()) },
		"large-and-empty":      largeAndEmpty,
		"offsets-by-time":      offsetsByTime,
		"read-process-write":   readProcessWrite,
		"transactions":         transactions,
	}
	names := []string{}
	for name := range checks {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		func() {
			defer func() {
				if reason := recover(); reason != nil {
					fmt.Printf("FAIL %s: %v\n", name, reason)
				} else {
					fmt.Printf("PASS %s\n", name)
				}
			}()
			checks[name](name)
		}()
	}
}
