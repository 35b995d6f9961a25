package federation

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
)

var update = flag.Bool("update", false, "write the transcripts as they are now")

// TestTranscripts replays testdata/transcript with the sites of the simulation. A line
// that is not indented is a command; the indented lines below it are what happens:
//
//	protocol 1                       for the rest of the file
//	write SITE TYPE NS/NAME=PAYLOAD [mesh=M] [zones=Z] [label:KEY=VALUE]
//	fill SITE TYPE NS N              writes N objects n00, n01, …
//	remove SITE TYPE NS/NAME…
//	clear SITE TYPE                  removes all own objects
//	run ZONE                         connects if need be; delivers until nothing moves
//	run ZONE quiet                   the same, without printing messages
//	cut ZONE | crash SITE | start SITE | empty SITE | backup SITE | restore SITE
//	lag SITE                         the backup's state, as of an instance that is behind
//	clock DURATION
//	show SITE TYPE                   objects with their labels
//	status SITE ZONE                 what the receiver of a site says
//	peer SITE ZONE                   what the sender of a site says
//	confirm SITE ZONE TYPE | retry SITE ZONE TYPE | namespace SITE
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/transcript/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(string(want))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func replay(script string) string {
	s := newSim(0, false)
	s.script = true
	for _, site := range s.sites() {
		site.start()
	}
	d := &director{sim: s}
	var out strings.Builder
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "  ") {
			continue
		}
		fmt.Fprintln(&out, line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		d.out = nil
		d.command(strings.Fields(line))
		for _, answer := range d.out {
			fmt.Fprintln(&out, "  "+answer)
		}
		if s.problem != "" {
			fmt.Fprintln(&out, "  FAIL "+s.problem)
			break
		}
	}
	return out.String()
}

type director struct {
	sim *sim
	out []string
}

func (d *director) say(format string, args ...any) {
	d.out = append(d.out, fmt.Sprintf(format, args...))
}

func (d *director) site(name string) *simSite {
	return d.sim.site(Owner{Zone: name})
}

func (d *director) link(zone string) *simLink {
	i := slices.IndexFunc(d.sim.links, func(l *simLink) bool { return l.zone.name == zone })
	return d.sim.links[i]
}

func parseKey(s string) Key {
	namespace, name, _ := strings.Cut(s, "/")
	return Key{Namespace: namespace, Name: name}
}

func (d *director) command(f []string) {
	verb, name, args := f[0], f[1], f[2:]
	switch verb {
	case "protocol":
		d.sim.v1 = name == "1"
	case "write":
		d.write(d.site(name), args[0], args[1:])
	case "fill":
		var n int
		_, err := fmt.Sscan(args[2], &n)
		must(err)
		for i := range n {
			key := Key{Namespace: strings.Trim(args[1], "-"), Name: fmt.Sprintf("n%02d", i)}
			d.site(name).write(args[0], key, func(o *Object) { o.Payload = []byte("1") })
		}
	case "remove":
		for _, key := range args[1:] {
			d.site(name).remove(args[0], parseKey(key))
		}
	case "clear":
		for key := range d.site(name).own[args[0]] {
			d.site(name).remove(args[0], key)
		}
	case "run":
		d.run(d.link(name), len(args) == 0)
	case "cut":
		d.link(name).cut(AtGlobal, "script")
		d.link(name).cut(AtZone, "script")
	case "crash":
		d.sim.crash(d.site(name))
	case "start":
		d.site(name).start()
	case "empty":
		d.sim.crash(d.site(name))
		d.site(name).wipe()
		d.site(name).start()
	case "backup":
		at := d.site(name)
		at.backup = &simBackup{objects: copyTables(at.objects), own: copyTables(at.own), revision: at.revision}
	case "restore":
		at := d.site(name)
		d.sim.crash(at)
		at.restore(at.backup)
		at.start()
	case "lag":
		at := d.site(name)
		d.sim.crash(at)
		at.objects, at.own, at.revision = copyTables(at.backup.objects), copyTables(at.backup.own), at.backup.revision
		at.start()
	case "clock":
		by, err := time.ParseDuration(name)
		must(err)
		d.sim.now = d.sim.now.Add(by)
	case "namespace":
		d.sim.late[name] = true
	case "show":
		d.show(d.site(name), args[0])
	case "status", "peer", "confirm", "retry":
		d.receiver(verb, d.site(name), d.link(args[0]), args[1:])
	default:
		d.say("unknown command")
	}
}

func (d *director) write(at *simSite, typ string, args []string) {
	key, payload, _ := strings.Cut(args[0], "=")
	at.write(typ, parseKey(key), func(o *Object) {
		o.Payload = []byte(payload)
		o.Labels = map[string]string{}
		for _, a := range args[1:] {
			k, v, _ := strings.Cut(a, "=")
			switch label, ok := strings.CutPrefix(k, "label:"); {
			case ok:
				o.Labels["mesh.proxima.dev/"+label] = v
			case k == "mesh":
				o.Mesh = v
			default:
				o.Annotations[k] = v
			}
		}
	})
}

// run delivers everything, in turns, and prints the messages.
func (d *director) run(l *simLink, print bool) {
	for _, from := range []Side{AtGlobal, AtZone} {
		for range 200 {
			logged := len(d.sim.log)
			l.connect(from)
			st := l.streams[from]
			if st == nil {
				d.say("no stream from %s", l.site(from).name)
				break
			}
			moved := st.pump()
			for l.streams[from] == st && len(st.requests) > 0 {
				d.sayRequest(st, print)
				st.request()
				moved = true
			}
			if l.streams[from] == st && len(st.responses) > 0 {
				d.sayResponse(st, print)
				st.response(false)
				moved = true
			}
			for _, line := range d.sim.log[logged:] {
				if strings.HasPrefix(line, "cut") {
					d.say("%s", line)
					moved = !strings.Contains(line, ErrBehind.Error())
				}
			}
			if !moved {
				break
			}
		}
	}
}

func (d *director) sayRequest(st *simStream, print bool) {
	var delta discovery.DeltaDiscoveryRequest
	var full discovery.DiscoveryRequest
	if st.sender != nil {
		must(proto.Unmarshal(st.requests[0], &delta))
	} else {
		must(proto.Unmarshal(st.requests[0], &full))
		delta.TypeUrl, delta.ResponseNonce, delta.ErrorDetail = full.TypeUrl, full.ResponseNonce, full.ErrorDetail
	}
	line := fmt.Sprintf("%s > %s", st.to.name, delta.TypeUrl)
	if delta.ResponseNonce != "" {
		line += " answer " + delta.ResponseNonce
	} else {
		line += " subscribe"
	}
	var have []string
	for k, v := range delta.InitialResourceVersions {
		switch {
		case k == cursorKey:
			have = append(have, "from "+d.position(v))
		case k == seenKey:
			have = append(have, "seen "+d.position(v))
		default:
			have = append(have, k+"="+v[:4])
		}
	}
	slices.Sort(have)
	if len(have) > 0 {
		line += " " + strings.Join(have, ", ")
	}
	if delta.ErrorDetail != nil {
		line += " NACK " + delta.ErrorDetail.Message
	}
	if print && (len(have) > 0 || delta.ErrorDetail != nil || delta.ResponseNonce != "") {
		d.say("%s", line)
	}
}

// position without the hash that begins it.
func (d *director) position(s string) string {
	_, sequence, _ := strings.Cut(s, ":")
	return "@" + sequence
}

func (d *director) sayResponse(st *simStream, print bool) {
	if !print {
		return
	}
	var parts []string
	say := func(r *discovery.Resource) {
		o, err := ParseObject(r.Resource.Value)
		must(err)
		parts = append(parts, fmt.Sprintf("%s=%s", r.Name, o.Payload))
	}
	var m discovery.DeltaDiscoveryResponse
	if st.sender != nil {
		must(proto.Unmarshal(st.responses[0], &m))
		for _, r := range m.Resources {
			say(r)
		}
	} else {
		var full discovery.DiscoveryResponse
		must(proto.Unmarshal(st.responses[0], &full))
		m.TypeUrl, m.Nonce, m.SystemVersionInfo, m.ControlPlane = full.TypeUrl, full.Nonce, full.VersionInfo, full.ControlPlane
		for _, body := range full.Resources {
			var r discovery.Resource
			must(body.UnmarshalTo(&r))
			say(&r)
		}
	}
	for _, name := range m.RemovedResources {
		parts = append(parts, "-"+name)
	}
	if len(parts) == 0 && m.Nonce <= "6" && len(m.Nonce) == 1 {
		parts = append(parts, "nothing")
	}
	at := "more"
	if m.SystemVersionInfo != "" {
		at = d.position(m.SystemVersionInfo)
	}
	d.say("%s < %s %s %s of %s [%s]", st.to.name, m.TypeUrl, m.Nonce, at, m.ControlPlane.GetIdentifier(), strings.Join(parts, " "))
}

func (d *director) show(at *simSite, typ string) {
	for key, o := range at.objects[typ] {
		var labels []string
		for k, v := range o.Labels {
			labels = append(labels, strings.TrimPrefix(k, "mesh.proxima.dev/")+"="+v)
		}
		slices.Sort(labels)
		d.say("%s %s %s", ResourceName(key), o.Payload, strings.Join(labels, " "))
	}
	slices.Sort(d.out)
}

func (d *director) receiver(verb string, at *simSite, l *simLink, args []string) {
	r := l.receiver(at.side)
	switch verb {
	case "status":
		for _, t := range r.Status() {
			line := fmt.Sprintf("%s copies %d at %s", t.Type, t.Copies, d.position(t.Checkpoint.Position))
			if t.Checkpoint.Seen != t.Checkpoint.Position {
				line += ", seen " + d.position(t.Checkpoint.Seen)
			}
			if !t.Answered {
				line += ", not answered"
			} else if !t.Complete {
				line += ", not complete"
			}
			d.say("%s", line)
			for _, h := range t.Held {
				d.say("  held of %s: %d %s", h.Owner, h.Count, strings.Join(h.Names, " "))
			}
			for _, f := range append(t.Refused, t.Waiting...) {
				d.say("  %s: %s, waiting %t", f.Resource, f.Reason, f.Waiting)
			}
		}
	case "peer":
		st := l.streams[at.side]
		var status SenderStatus
		if st.sender != nil {
			status = st.sender.Status()
		} else {
			status = st.projected.Status()
		}
		for _, t := range status.Types {
			d.say("%s sent @%d, unsent %d", t.Type, t.Sent.Sequence, t.Unsent)
			for _, f := range t.Refused {
				d.say("  %s: %s, waiting %t", f.Resource, f.Reason, f.Waiting)
			}
		}
	case "confirm":
		for _, t := range r.Status() {
			for _, h := range t.Held {
				if t.Type != args[0] {
					continue
				}
				tx, err := r.Confirm(t.Type, h.Owner, h.Token)
				if err != nil {
					d.say("error: %v", err)
					continue
				}
				d.finish(l, r, at, tx)
			}
		}
	case "retry":
		if tx := r.Retry(args[0]); tx != nil {
			d.finish(l, r, at, tx)
		}
	}
}

// finish applies a transaction that no response caused.
func (d *director) finish(l *simLink, r *Receiver, at *simSite, tx *Transaction) {
	answer, _ := l.finish(r, at, tx, false)
	if st := l.streams[other(at.side)]; st != nil && answer != nil {
		st.requests = append(st.requests, answer)
	}
	d.say("%d puts, %d deletes", len(tx.Puts), len(tx.Deletes))
}
