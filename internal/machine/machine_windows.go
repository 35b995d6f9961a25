package machine

import "golang.org/x/sys/windows/registry"

// hostID is the GUID that Windows' setup wrote.
func hostID() (string, error) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, `SOFTWARE\Microsoft\Cryptography`, registry.QUERY_VALUE|registry.WOW64_64KEY)
	if err != nil {
		return "", err
	}
	defer key.Close()
	id, _, err := key.GetStringValue("MachineGuid")
	return id, err
}

func networkNamespace() (string, error) { return "", nil }
