package secret

import "testing"

// FuzzDecode: whatever is in the Secret, decoding it returns records or an error.
func FuzzDecode(f *testing.F) {
	for _, all := range [][]record{nil, {{Key: "a", Value: []byte("1")}, {Key: "\xff", Value: nil}}} {
		data, err := encode(all)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := decode(data)
		if err != nil {
			return
		}
		again, err := encode(all)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := decode(again); err != nil || len(back) != len(all) {
			t.Fatalf("%d records are %d, %v", len(all), len(back), err)
		}
	})
}
