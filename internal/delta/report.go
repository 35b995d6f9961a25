package delta

// Reporter is told what a client takes and what it does not. Step and Next of the session call
// its methods, which must not block.
type Reporter interface {
	// Acked: the client took a response with these resources, set or removed. Those that it has
	// in a version other than the one that it, or a client like it, refused are not named.
	Acked(typ string, names []string)
	// Nacked: the client refused a response, for a reason. The cause is among these resources;
	// each is acknowledged, released or refused later.
	Nacked(typ string, names []string, reason string)
	// Refused: this version of a resource was found to be refused. alone: that concerns this
	// client only. Nacked was called before.
	Refused(one Quarantined, alone bool)
	// Withheld: the client is not sent this version, as a client like it refused it.
	Withheld(one Quarantined)
	// Released: a resource that was refused or withheld is so no more, and the client has it as it
	// is to be, or is not to have it.
	Released(ref Ref)
}

// silent is the Reporter of a session that has none.
type silent struct{}

func (silent) Acked(string, []string)          {}
func (silent) Nacked(string, []string, string) {}
func (silent) Refused(Quarantined, bool)       {}
func (silent) Withheld(Quarantined)            {}
func (silent) Released(Ref)                    {}

// present is the version of a name that the client is not sent, although it is the present one;
// ok is false if there is none.
func (l *Layered) present(n *lane, name string) (one Quarantined, ok bool) {
	ref := Ref{n.typ, name}
	version := l.look(ref).version
	if version == "" {
		return one, false
	}
	if bad, own := n.bad[name]; own && bad.Version == version {
		return bad, true
	}
	return l.c.Quarantine.find(ref, version)
}

// judge notes, when a name is looked at, that a version is withheld, or is so no more. sends:
// the client is sent another one, and answers.
func (l *Layered) judge(n *lane, name string, sends bool) {
	refused, known := n.refusals[name]
	if !known && n.bad[name].Version == "" && !l.c.Quarantine.holds(Ref{n.typ, name}) {
		return // as nearly always
	}
	one, bad := l.present(n, name)
	switch {
	case bad && refused.Version != one.Version:
		n.note(one)
		l.c.Report.Withheld(one)
	case !bad && known && !sends:
		n.release(l, name)
	}
}

// release a name that is refused.
func (n *lane) release(l *Layered, name string) {
	if _, known := n.refusals[name]; known {
		delete(n.refusals, name)
		l.c.Report.Released(Ref{n.typ, name})
	}
}

// accept what a response had. What the client accepted in place of what is refused leaves that
// refused.
func (l *Layered) accept(n *lane, got *response) {
	names := make([]string, 0, len(got.items)+len(got.removed))
	for _, i := range got.items {
		if _, refused := n.refusals[i.name]; refused {
			if _, bad := l.present(n, i.name); bad {
				continue
			}
			delete(n.refusals, i.name)
		}
		names = append(names, i.name)
	}
	for _, name := range got.removed {
		delete(n.refusals, name)
	}
	l.c.Report.Acked(n.typ, append(names, got.removed...))
}
