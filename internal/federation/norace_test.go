//go:build !race

package federation

const raceDetector = false
