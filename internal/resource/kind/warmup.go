package kind

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// AnnotationWarmUp on a Service is for how long the weight of an endpoint that became ready
// rises to the full one, as a duration of Go: 30s.
const AnnotationWarmUp = "topology.proxima.dev/warmup"

// Bounds of a warm-up: kernels are programmed at each tenth of it, and times of readiness
// have seconds.
const (
	minWarmUp = time.Second
	maxWarmUp = time.Hour
)

// ParseWarmUp reads the value of AnnotationWarmUp.
func ParseWarmUp(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < minWarmUp || d > maxWarmUp {
		return 0, errors.New("must be a duration from 1s to 1h, such as 30s; remove the annotation to turn warm-up off")
	}
	return d, nil
}

// WarmUpOf a Service; 0: it warms no endpoints up, or its annotation is invalid, or it is nil.
func WarmUpOf(s *corev1.Service) time.Duration {
	if s == nil {
		return 0
	}
	d, _ := ParseWarmUp(s.Annotations[AnnotationWarmUp]) // the API has validated it
	return d
}

func checkWarmUp(s *corev1.Service) field.ErrorList {
	value, ok := s.Annotations[AnnotationWarmUp]
	if !ok {
		return nil
	}
	if _, err := ParseWarmUp(value); err != nil {
		return field.ErrorList{field.Invalid(field.NewPath("metadata", "annotations").Key(AnnotationWarmUp), value, fmt.Sprint(err))}
	}
	return nil
}
