// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"

	"github.com/libra-ina/libra/bench/chaos"
)

func ExamplePlan() {
	life := chaos.Plan(7, 300, []chaos.Kind{chaos.MAC, chaos.Loss})
	fmt.Println(life.Workers, "workers, and", len(life.Troubles), "troubles besides loss")
	fmt.Println(life.Troubles[0].Kind)
	// Output:
	// 3 workers, and 3 troubles besides loss
	// mac
}
