package shop;

import com.google.protobuf.StringValue;

/** Greeter is called by Triple with messages of Protocol Buffers, as dubbo-go does. */
public interface Greeter {
    StringValue Greet(StringValue name);
}
