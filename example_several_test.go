package gotsem_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ashfaqjani916/gotsem"
)

// A lease of a key, of its tenant and of all that there is.
func ExampleAlso() {
	limits := map[string]int{"key:42": 1, "tenant:7": 5, "all": 40}
	sem, err := gotsem.New(gotsem.Options{
		LimitFunc: func(_ context.Context, id string) (int, error) { return limits[id], nil },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sem.Close()
	ctx := context.Background()

	lease, err := sem.Try(ctx, "key:42", gotsem.Also("tenant:7"), gotsem.Also("all", gotsem.Weight(2)))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lease.IDs())

	_, err = sem.Try(ctx, "key:42", gotsem.Also("tenant:7"), gotsem.Also("all"))
	var full *gotsem.FullError
	if errors.As(err, &full) {
		fmt.Printf("level %d, %s: %d of %d\n", full.Level, full.ID, full.Active, full.Limit)
	}

	_, err = sem.Try(ctx, "all", gotsem.Also("key:42"))
	fmt.Println(errors.Is(err, gotsem.ErrOrder))
	_ = lease.Release(ctx)
	// Output:
	// [key:42 tenant:7 all]
	// level 0, key:42: 1 of 1
	// true
}

// What is refused first, and what goes first in line.
func ExampleOptions_classes() {
	sem, err := gotsem.New(gotsem.Options{
		Limit: 4,
		Classes: map[gotsem.Class]gotsem.ClassRule{
			gotsem.Sheddable: {Slots: .5}, // half of the slots, where it does not wait
			gotsem.Batch:     {Slots: .75},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sem.Close()
	ctx := context.Background()
	for _, class := range []gotsem.Class{gotsem.Sheddable, gotsem.Batch, gotsem.Critical} {
		n := 0
		for {
			if _, err := sem.Try(ctx, "id", gotsem.As(class)); err != nil {
				var full *gotsem.FullError
				errors.As(err, &full)
				fmt.Printf("%s: %d more, then %d of %d\n", class, n, full.Active, full.Limit)
				break
			}
			n++
		}
	}
	// Output:
	// sheddable: 2 more, then 2 of 2
	// batch: 1 more, then 3 of 3
	// critical: 1 more, then 4 of 4
}
