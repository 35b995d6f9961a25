package ingress_test

func runRole(string) {}
