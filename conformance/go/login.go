// The part of franz-go in conformance/test_login_table.py.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// way is where and how to log in. Ca, Certificate and Key are files. Without a Mechanism, the certificate is the login.
type way struct {
	Topic, Address, Protocol, Mechanism, User, Password, Token, Ca, Certificate, Key string
}

func (w way) login() kgo.Opt {
	switch w.Mechanism {
	case "PLAIN":
		return kgo.SASL(plain.Auth{User: w.User, Pass: w.Password}.AsMechanism())
	case "SCRAM-SHA-256":
		return kgo.SASL(scram.Auth{User: w.User, Pass: w.Password}.AsSha256Mechanism())
	case "SCRAM-SHA-512":
		return kgo.SASL(scram.Auth{User: w.User, Pass: w.Password}.AsSha512Mechanism())
	case "OAUTHBEARER":
		return kgo.SASL(oauth.Auth{Token: w.Token}.AsMechanism())
	}
	panic("unknown mechanism " + w.Mechanism)
}

func (w way) options() []kgo.Opt {
	found := []kgo.Opt{kgo.SeedBrokers(strings.Split(w.Address, ",")...)}
	if strings.HasSuffix(w.Protocol, "SSL") {
		pem, err := os.ReadFile(w.Ca)
		must(err)
		config := &tls.Config{RootCAs: x509.NewCertPool()}
		config.RootCAs.AppendCertsFromPEM(pem)
		if w.Mechanism == "" {
			own, err := tls.LoadX509KeyPair(w.Certificate, w.Key)
			must(err)
			config.Certificates = []tls.Certificate{own}
		}
		found = append(found, kgo.DialTLSConfig(config))
	}
	if w.Mechanism != "" {
		found = append(found, w.login())
	}
	return found
}

// copied creates the topic, writes three values, and reads them as a member of a group.
func (w way) copied() (found []string, reason any) {
	defer func() { reason = recover() }()
	deadline, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	writer, err := kgo.NewClient(w.options()...)
	must(err)
	defer writer.Close()
	must(writer.Ping(deadline))
	created, err := kadm.NewClient(writer).CreateTopics(deadline, 1, -1, nil, w.Topic)
	must(err)
	must(created.Error())
	for _, value := range []string{"one", "two", "three"} {
		must(writer.ProduceSync(deadline, &kgo.Record{Topic: w.Topic, Value: []byte(value)}).FirstErr())
	}
	reader, err := kgo.NewClient(append(w.options(), kgo.ConsumerGroup(w.Topic), kgo.ConsumeTopics(w.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	must(err)
	defer reader.Close()
	for len(found) < 3 {
		fetches := reader.PollFetches(deadline)
		must(fetches.Err())
		fetches.EachRecord(func(each *kgo.Record) { found = append(found, string(each.Value)) })
	}
	return found, nil
}

// logIn reads ways from stdin, as JSON. For each of them, it prints a line: the topic, and what was read or the error.
func logIn(string) {
	var ways []way
	must(json.NewDecoder(os.Stdin).Decode(&ways))
	for _, each := range ways {
		if found, reason := each.copied(); reason != nil {
			fmt.Printf("%s failed %s\n", each.Topic, strings.ReplaceAll(fmt.Sprint(reason), "\n", " "))
		} else {
			fmt.Printf("%s read %s\n", each.Topic, strings.Join(found, " "))
		}
	}
}
