package history

import "testing"

func TestPlantedMistakesAreFound(t *testing.T) {
	SelfTest(func(ok bool, name, found string) {
		if !ok {
			t.Errorf("%s: %s", name, found)
		}
	})
}
