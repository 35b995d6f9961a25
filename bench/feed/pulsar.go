package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

// peer is the Apache Pulsar that runs beside us; nil: there is none.
var peer *broker

// broker is Apache Pulsar as it is shipped, in one process on loopback: broker, bookie (which syncs its journal) and metadata.
type broker struct {
	cmd    *exec.Cmd
	client pulsar.Client
	topics int
}

// pulsarHome is where make interop-pulsar has unpacked Apache Pulsar; empty: nowhere.
func pulsarHome() string {
	home := os.Getenv("PROXIMA_PULSAR_HOME")
	if cache, err := os.UserCacheDir(); home == "" && err == nil {
		home = filepath.Join(cache, "proxima-pulsar", "apache-pulsar-4.0.4")
	}
	if _, err := os.Stat(filepath.Join(home, "bin", "pulsar")); err != nil {
		return ""
	}
	return home
}

// startBroker with its data in a directory, and wait until it works, which takes a minute.
func startBroker(home, dir string) (*broker, error) {
	conf, err := os.ReadFile(filepath.Join(home, "conf", "standalone.conf"))
	if err != nil {
		return nil, err
	}
	binary, err := freePort()
	if err != nil {
		return nil, err
	}
	web, err := freePort()
	if err != nil {
		return nil, err
	}
	conf = bytes.Replace(conf, []byte("brokerServicePort=6650"), fmt.Appendf(nil, "brokerServicePort=%d", binary), 1)
	conf = bytes.Replace(conf, []byte("webServicePort=8080"), fmt.Appendf(nil, "webServicePort=%d", web), 1)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "standalone.conf")
	if err := os.WriteFile(file, conf, 0o600); err != nil {
		return nil, err
	}
	output, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer output.Close()
	b := &broker{cmd: exec.Command(filepath.Join(home, "bin", "pulsar"), "standalone", "-nfw", "-nss", "-a", "127.0.0.1",
		"--metadata-dir", filepath.Join(dir, "metadata"), "--bookkeeper-dir", filepath.Join(dir, "bookkeeper"))}
	b.cmd.Env = append(os.Environ(), "PULSAR_STANDALONE_CONF="+file, "PULSAR_MEM=-Xms512m -Xmx1g -XX:MaxDirectMemorySize=1g", "PULSAR_GC_LOG=-Xlog:disable",
		"PULSAR_LOG_DIR="+dir)
	b.cmd.Stdout, b.cmd.Stderr = output, output
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := b.cmd.Start(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(4 * time.Minute); ; {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/admin/v2/brokers/health", web))
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				break
			}
		}
		if time.Now().After(end) {
			b.stop()
			return nil, errors.New("Apache Pulsar does not become healthy")
		}
		time.Sleep(500 * time.Millisecond)
	}
	b.client, err = pulsar.NewClient(pulsar.ClientOptions{
		URL: fmt.Sprintf("pulsar://127.0.0.1:%d", binary), Logger: plog.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil))),
	})
	if err != nil {
		b.stop()
	}
	return b, err
}

func (b *broker) stop() {
	if b.client != nil {
		b.client.Close()
	}
	_ = syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL)
	_ = b.cmd.Wait()
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func (b *broker) topic() string {
	b.topics++
	return fmt.Sprintf("persistent://public/default/feed-%d", b.topics)
}

func (b *broker) producer(topic string) (pulsar.Producer, error) {
	return b.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, MaxPendingMessages: group, BatchingMaxPublishDelay: time.Millisecond, BatchingMaxMessages: group,
	})
}

// fill publishes, with as many on their way as the feed syncs together, and returns how long it took.
func (b *broker) fill(topic string, all []*seglog.Entry) (time.Duration, error) {
	p, err := b.producer(topic)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	var sent sync.WaitGroup
	var failed atomic.Value
	began := time.Now()
	for i, e := range all {
		sent.Add(1)
		p.SendAsync(context.Background(), &pulsar.ProducerMessage{Key: fmt.Sprintf("s%d", i%1000), Payload: e.Value},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				if err != nil {
					failed.Store(err)
				}
				sent.Done()
			})
	}
	sent.Wait()
	if err, ok := failed.Load().(error); ok {
		return 0, err
	}
	return time.Since(began), nil
}

// read all messages.
func (b *broker) read(topic string, n int) (time.Duration, error) {
	began := time.Now()
	r, err := b.client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID(), ReceiverQueueSize: 10_000})
	if err != nil {
		return 0, err
	}
	defer r.Close()
	for range n {
		if _, err := r.Next(context.Background()); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

// tail publishes one message after the other, and returns when each arrives.
func (b *broker) tail(n int) (after, all []time.Duration, err error) {
	topic := b.topic()
	r, err := b.client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.LatestMessageID()})
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	p, err := b.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	if err != nil {
		return nil, nil, err
	}
	defer p.Close()
	arrived := make(chan time.Time, n)
	go func() {
		for range n {
			if _, err := r.Next(context.Background()); err != nil {
				return
			}
			arrived <- time.Now()
		}
	}()
	for i := range n {
		began := time.Now()
		if _, err := p.Send(context.Background(), &pulsar.ProducerMessage{Key: "s1", Payload: value(i)}); err != nil {
			return nil, nil, err
		}
		acked := time.Now()
		at := <-arrived
		after, all = append(after, max(at.Sub(acked), 0)), append(all, at.Sub(began))
		time.Sleep(time.Millisecond)
	}
	return after, all, nil
}
