package fromview

import "github.com/prometheus/client_golang/prometheus"

// register the metrics of the feed.
func (f *Feed) register(reg prometheus.Registerer) {
	metric := func(name, help string, value func(FeedStatus) float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "proxima", Subsystem: "view", Name: name, Help: help,
		}, func() float64 { return value(f.Status()) }))
	}
	metric("connected", "1 while a stream to the control plane is open.", func(s FeedStatus) float64 {
		if s.Connected {
			return 1
		}
		return 0
	})
	metric("unsaved", "1 while the state on disk lacks the newest changes.", func(s FeedStatus) float64 {
		if s.Unsaved {
			return 1
		}
		return 0
	})
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "proxima", Subsystem: "view", Name: "streams_total", Help: "Streams to the control plane that were admitted.",
	}, func() float64 { return float64(f.Status().Streams) }))
	metric("received_bytes", "Payload received on the present stream, or on the last one.",
		func(s FeedStatus) float64 { return float64(s.BytesReceived) })
	metric("sent_bytes", "Payload sent on the present stream, or on the last one.",
		func(s FeedStatus) float64 { return float64(s.BytesSent) })
	metric("rejected_resources", "Resources of the view that this agent could not read.",
		func(s FeedStatus) float64 { return float64(len(s.Rejected)) })
}
