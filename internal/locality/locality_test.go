package locality

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestLabels(t *testing.T) {
	labels := map[string]string{corev1.LabelTopologyZone: "eu-1", corev1.LabelTopologyRegion: "eu"}
	if zone, region := ZoneOf(labels), RegionOf(labels); zone != "eu-1" || region != "eu" {
		t.Errorf("zone %q of region %q", zone, region)
	}
	if zone, region := ZoneOf(nil), RegionOf(nil); zone != "" || region != "" {
		t.Errorf("without labels: zone %q of region %q", zone, region)
	}
}
