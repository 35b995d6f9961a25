package wire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protodelim"

	demandv1 "github.com/proxima-mesh/proxima/api/demand/v1"
	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/demand"
)

const (
	// maxLeft reports are kept for a next process: of an agent that is restarted again and again
	// while no control plane answers, the newest.
	maxLeft = 4
	// maxLeftAge of reports that are still evidence.
	maxLeftAge = time.Hour
	// maxLeftSize bounds a report in the file, in bytes.
	maxLeftSize = 16 << 20
)

// left are the reports that an earlier process of the agent did not deliver. They go out as
// they were, under their own run and sequence, so that a receiver that has one of them
// already does not count it again.
type left struct {
	path    string // empty: nothing is kept
	reports []*demandv1.ReportRequest
}

// read the file. One that is damaged or too old counts for nothing.
func (l *left) read(node string) error {
	if l.path == "" {
		return nil
	}
	info, err := os.Stat(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && time.Since(info.ModTime()) > maxLeftAge {
		return os.Remove(l.path)
	}
	data, err := os.ReadFile(l.path)
	if err != nil {
		return err
	}
	l.reports, err = parseLeft(data, node)
	return err
}

// parseLeft reads reports of a node up to the first that is damaged.
func parseLeft(data []byte, node string) (out []*demandv1.ReportRequest, err error) {
	r := bufio.NewReader(bytes.NewReader(data))
	for {
		m := &demandv1.ReportRequest{}
		err := protodelim.UnmarshalOptions{MaxSize: maxLeftSize}.UnmarshalFrom(r, m)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		if m.GetNode() == node { // else the directory was another node's
			out = append(out, m)
		}
	}
}

// write replaces the file; without reports it is removed.
func (l *left) write() error {
	if l.path == "" {
		return nil
	}
	if len(l.reports) == 0 {
		if err := os.Remove(l.path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	var b bytes.Buffer
	for _, m := range l.reports[max(0, len(l.reports)-maxLeft):] {
		if _, err := protodelim.MarshalTo(&b, m); err != nil {
			return err
		}
	}
	return atomicfile.Write(l.path, b.Bytes(), 0o600)
}

// deliver sends what is left. The file is removed when all of it was answered.
func (l *left) deliver(ctx context.Context, service demandv1.DemandClient) error {
	if len(l.reports) == 0 {
		return nil
	}
	for len(l.reports) > 0 {
		sending, cancel := context.WithTimeout(ctx, timeout)
		_, err := service.Report(sending, l.reports[0])
		cancel()
		if err != nil && status.Code(err) != codes.InvalidArgument {
			return err
		}
		l.reports = l.reports[1:]
	}
	return l.write()
}

// keep adds what the meter has not delivered.
func (l *left) keep(m *demand.Meter, next func() *demand.Report) error {
	if l.path == "" {
		return nil
	}
	for r := next(); r != nil; r = next() { // the one that was sent, and all since
		if len(r.Traffic) > 0 {
			l.reports = append(l.reports, encode(r))
		}
		m.Acknowledge(r.Sequence)
	}
	return l.write()
}
