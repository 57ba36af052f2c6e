package api

import "iter"

// Pages visits a list that comes in pages, in the order of the names of its items: next
// answers those behind a name, and whether there are more. It ends after an error.
//
// It is for the other packages of this module alone.
func Pages[T any](name func(*T) string, next func(after string) (page []T, more bool, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for after := ""; ; {
			page, more, err := next(after)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for i := range page {
				after = name(&page[i])
				if !yield(page[i], nil) {
					return
				}
			}
			if !more || len(page) == 0 {
				return
			}
		}
	}
}

// Listed visits a list that is there as a whole, or the reason why it is not.
//
// It is for the other packages of this module alone.
func Listed[T any](list []T, err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if err != nil {
			var none T
			yield(none, err)
			return
		}
		for _, item := range list {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// Collect makes a slice of what is visited, nil after an error.
//
// It is for the other packages of this module alone.
func Collect[T any](all iter.Seq2[T, error]) (list []T, err error) {
	for item, err := range all {
		if err != nil {
			return nil, err
		}
		list = append(list, item)
	}
	return list, nil
}
